//! Follows a packet through the rules of a host.
//!
//! At a hook, the kernel calls the base chains of all tables in the order of their priorities. A
//! drop in any chain is final. An accept verdict ends only the current base chain. If the reader
//! does not know whether packets fulfil a condition, both outcomes are considered.

use super::fits::Fits;
use super::model::{
    Base, Chain, Condition, Elements, Hook, Key, Layer, Name, Program, Rule, Rules, Source, Step,
    Table, Value, Verdict,
};
use super::packet::{Mark, Packet, Stage};
use super::ranges::Ranges;
use super::words::{WITH_PORTS, state};
use std::collections::BTreeSet;

/// Nested jumps between chains that the kernel follows.
const DEPTH: usize = 16;
/// Rules that the reader evaluates to determine one result.
const RULES: usize = 100_000;
/// Smaller classes into which the reader divides a class of packets.
const PARTS: usize = 48;
/// Why a result is unknown if the rules drop only some packets of the class.
const SOME: &str = "only some of the packets";
/// Connection tracking looks up a packet's connection at this priority. Chains with a lower
/// priority see no connection state.
const TRACKING: i32 = -200;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stop {
    /// The program that created the table.
    pub program: Program,
    /// As nft names the family.
    pub layer: &'static str,
    pub table: String,
    /// The base chain that the kernel called.
    pub base: String,
    /// The number, from 1, of the rule in `base` that drops the packets or jumps toward the
    /// dropping rule. `None` if the chain's policy drops them.
    pub number: Option<usize>,
    /// The nftables handle of that rule in `base`.
    pub handle: Option<u64>,
    /// The chain that contains the dropping rule.
    pub chain: String,
    /// The number of the dropping rule in `chain`, starting with 1.
    pub place: Option<usize>,
    /// As iptables-save prints it; empty for a table of nft or a policy.
    pub rule: String,
    /// The dropping rule's packet counter; `None` for a policy and for a rule without a counter.
    pub packets: Option<u64>,
    /// The dropping rule, or a rule that jumps toward it, matches the packets by interface or
    /// address.
    pub named: bool,
}

impl Stop {
    /// The policy of the base chain, and not a rule, drops the packets.
    #[must_use]
    pub fn is_policy(&self) -> bool {
        self.number.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Yes {
        /// A rule that accepts the packets matches them by interface or address.
        named: bool,
    },
    /// A rule or policy drops all packets of the class.
    No(Stop),
    /// The result is unknown, or the rules drop only some packets of the class.
    Perhaps {
        /// Why there is no one result for all packets.
        why: String,
        /// Drops all packets if they fulfil no condition that the reader does not understand.
        unless: Option<Stop>,
    },
}

impl Fate {
    /// What drops or may drop the packets.
    #[must_use]
    pub fn stop(&self) -> Option<&Stop> {
        match self {
            Fate::Yes { .. } => None,
            Fate::No(stop) => Some(stop),
            Fate::Perhaps { unless, .. } => unless.as_ref(),
        }
    }

    /// The combined result for two classes of packets.
    fn and(self, other: Fate) -> Fate {
        match (self, other) {
            (Fate::Yes { named }, Fate::Yes { named: also }) => Fate::Yes { named: named && also },
            (Fate::No(stop), Fate::No(_)) => Fate::No(stop),
            (one, other) => {
                let why = [&one, &other].into_iter().find_map(|fate| {
                    if let Fate::Perhaps { why, .. } = fate { Some(why.clone()) } else { None }
                });
                let unless = one.stop().filter(|_| other.stop().is_some()).cloned();
                Fate::Perhaps { why: why.unwrap_or_else(|| SOME.to_owned()), unless }
            }
        }
    }
}

/// A chain, set or map that the evaluation of a table needs and that the listing lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// As nft names the family.
    pub layer: &'static str,
    pub table: String,
    /// The name of the missing object.
    pub name: String,
    pub part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Chain,
    Set,
    Map,
}

impl Part {
    /// The keyword in nft commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Chain => "chain",
            Part::Set => "set",
            Part::Map => "map",
        }
    }
}

/// The evaluation of a host's rules for packets.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    rules: &'a Rules,
    /// True for the base chains that the reader evaluates: by default, all.
    only: &'a dyn Fn(&Table, &str, &Base) -> bool,
    /// The evaluation ignores the drop verdicts of these rules and policies.
    over: &'a [Stop],
}

impl<'a> Walk<'a> {
    /// Evaluates all base chains.
    #[must_use]
    pub fn through(rules: &'a Rules) -> Self {
        Self { rules, only: &|_, _, _| true, over: &[] }
    }

    /// Restricts the evaluation to the base chains for which `only` is true.
    #[must_use]
    pub fn only(self, only: &'a dyn Fn(&Table, &str, &Base) -> bool) -> Self {
        Self { only, ..self }
    }

    #[must_use]
    pub fn fate(&self, packet: &Packet) -> Fate {
        self.both(packet).0
    }

    /// The rules and policies that drop the packets, in the order of evaluation; for each, the
    /// earlier ones are ignored. The flag is true if the packets may pass because the reader does
    /// not understand a condition.
    #[must_use]
    pub fn stops(&self, packet: &Packet) -> Vec<(Stop, bool)> {
        let mut found: Vec<(Stop, bool)> = Vec::new();
        let mut fate = self.fate(packet);
        while let Some(stop) = fate.stop().cloned()
            && found.len() < DEPTH
            && !found.iter().any(|(known, _)| *known == stop)
        {
            found.push((stop, !matches!(fate, Fate::No(_))));
            let over: Vec<Stop> = found.iter().map(|(stop, _)| stop.clone()).collect();
            fate = Walk { over: &over, ..*self }.fate(packet);
        }
        found
    }

    /// What the listing lacks on a packet's path.
    #[must_use]
    pub fn missing(&self, packet: &Packet) -> BTreeSet<Missing> {
        self.both(packet).1
    }

    fn both(&self, packet: &Packet) -> (Fate, BTreeSet<Missing>) {
        let (mut parts, mut rest, mut missing) = (PARTS, RULES, BTreeSet::new());
        let fates = packet
            .by_bridge()
            .into_iter()
            .map(|packet| self.divide(&packet, &mut parts, &mut rest, &mut missing));
        let fate = fates.reduce(Fate::and).unwrap_or(Fate::Yes { named: false });
        (fate, missing)
    }

    /// If the result depends on a condition that only some packets fulfil, the class is divided and
    /// both results are combined.
    fn divide(
        &self,
        packet: &Packet,
        parts: &mut usize,
        rest: &mut usize,
        missing: &mut BTreeSet<Missing>,
    ) -> Fate {
        *parts = parts.saturating_sub(1);
        let mut steps = Steps {
            walk: self,
            packet,
            rest: *rest,
            mark: packet.mark,
            state: packet.state.clone(),
            accepted: None,
            partial: None,
            doubt: None,
            missing,
        };
        let fate = steps.run();
        *rest = steps.rest;
        let divided = steps.partial.filter(|_| *parts > 0 && matches!(fate, Fate::Perhaps { .. }));
        match divided.and_then(|(key, by)| packet.divided(&key, &by)) {
            Some([some, others]) => self
                .divide(&some, parts, rest, missing)
                .and(self.divide(&others, parts, rest, missing)),
            None => fate,
        }
    }
}

/// The possible outcomes for packets in a chain.
#[derive(Clone, Debug, Default)]
struct May {
    accept: bool,
    drop: bool,
    /// Packets may leave the chain without an accept or drop verdict.
    fall: bool,
    /// A rule that accepts the packets matches them by interface or address.
    named: bool,
}

impl May {
    /// The possible outcomes if the chain's rules are unknown.
    fn anything() -> Self {
        Self { accept: true, drop: true, fall: true, named: false }
    }
}

/// The outcome for packets in a chain that fulfil no condition that the reader does not understand.
#[derive(Clone, Debug)]
enum End {
    Accept,
    Drop(Stop),
    Fall,
}

/// Mark and state after the previous rules.
#[derive(Clone, Debug)]
struct Changed {
    mark: Mark,
    state: Ranges,
}

impl Changed {
    fn or(self, other: &Changed) -> Changed {
        Changed {
            mark: self.mark.or(other.mark),
            state: Ranges::union(&[self.state, other.state.clone()]),
        }
    }
}

fn join(known: &mut Option<Changed>, other: Changed) {
    *known = Some(match known.take() {
        Some(known) => known.or(&other),
        None => other,
    });
}

/// The current position in the rules: the table, the base chain, and the rule in the base chain.
#[derive(Clone, Copy)]
struct Place<'a> {
    table: &'a Table,
    name: &'a str,
    base: &'a Base,
    stage: &'a Stage,
    number: Option<usize>,
    handle: Option<u64>,
    /// A rule that jumped toward this position matches the packets by interface or address.
    named: bool,
    depth: usize,
}

impl Place<'_> {
    fn stop(&self, chain: &str, rule: Option<(usize, &Rule)>) -> Stop {
        Stop {
            program: self.table.program,
            layer: self.table.layer.name(),
            table: self.table.name.clone(),
            base: self.name.to_owned(),
            number: rule.and(self.number),
            handle: rule.and(self.handle),
            chain: chain.to_owned(),
            place: rule.map(|(number, _)| number),
            rule: rule.map(|(_, rule)| rule.text.clone()).unwrap_or_default(),
            packets: rule.and_then(|(_, rule)| rule.packets),
            named: self.named,
        }
    }
}

/// A rule, the name of its chain, and its number there.
#[derive(Clone, Copy)]
struct RuleAt<'a> {
    chain: &'a str,
    number: usize,
    rule: &'a Rule,
}

/// The evaluation of one class of packets.
struct Steps<'a, 'b> {
    walk: &'a Walk<'a>,
    packet: &'a Packet,
    /// Rules that the reader may still evaluate.
    rest: usize,
    mark: Mark,
    state: Ranges,
    /// Mark and state of the packets that the current base chain has accepted.
    accepted: Option<Changed>,
    /// The first condition that only some of the packets fulfil.
    partial: Option<(Key, Ranges)>,
    /// The first reason why the result may be unknown.
    doubt: Option<String>,
    missing: &'b mut BTreeSet<Missing>,
}

impl<'a> Steps<'a, '_> {
    fn run(&mut self) -> Fate {
        let (mut stop, mut may_drop, mut named) = (None, false, false);
        for stage in self.packet.stages() {
            let mut bases: Vec<(&Table, &String, &Chain, &Base)> = Vec::new();
            for table in self.walk.rules.tables.iter().filter(|table| table.layer.sees(stage.layer))
            {
                let called = table
                    .chains
                    .iter()
                    .filter_map(|(name, chain)| Some((table, name, chain, chain.base.as_ref()?)));
                bases.extend(called.filter(|(table, name, _, base)| {
                    base.hook == stage.hook && (self.walk.only)(table, name, base)
                }));
            }
            bases.sort_by_key(|(.., base)| base.priority);
            for (table, name, chain, base) in bases {
                let fits = match &base.device {
                    Some(device) => {
                        stage.incoming.fits(&Name { text: device.clone(), is_prefix: false })
                    }
                    // nft before 1.0.7 does not list the device.
                    None if table.layer == Layer::Netdev => Fits::Perhaps,
                    None => Fits::Yes,
                };
                if fits == Fits::No {
                    continue;
                }
                let place = Place {
                    table,
                    name,
                    base,
                    stage: &stage,
                    number: None,
                    handle: None,
                    named: false,
                    depth: 0,
                };
                let (may, end) = self.base(place, chain);
                named |= may.named;
                may_drop |= may.drop;
                if stop.is_none()
                    && fits == Fits::Yes
                    && let End::Drop(found) = end
                {
                    stop = Some(found);
                }
                if may.drop && !may.accept && fits == Fits::Yes {
                    return match stop {
                        Some(stop) => Fate::No(stop),
                        None => Fate::Perhaps { why: self.doubt(), unless: None },
                    };
                }
            }
        }
        if may_drop {
            Fate::Perhaps { why: self.doubt(), unless: stop }
        } else {
            Fate::Yes { named }
        }
    }

    fn doubt(&self) -> String {
        self.doubt.clone().unwrap_or_else(|| SOME.to_owned())
    }

    /// Follows the packets through the chain, then applies its policy.
    fn base(&mut self, place: Place<'_>, chain: &Chain) -> (May, End) {
        self.accepted = None;
        let (mut may, mut end) = self.chain(place, place.name, chain);
        if may.fall {
            let policy = place.stop(place.name, None);
            let drops = place.base.drops && !self.walk.over.contains(&policy);
            may.drop |= drops;
            may.accept |= !drops;
            if matches!(end, End::Fall) {
                end = if drops { End::Drop(policy) } else { End::Accept };
            }
            if !drops {
                self.accepts();
            }
        }
        if let Some(changed) = self.accepted.take() {
            self.set(changed);
        }
        (may, end)
    }

    fn changed(&self) -> Changed {
        Changed { mark: self.mark, state: self.state.clone() }
    }

    fn set(&mut self, changed: Changed) {
        (self.mark, self.state) = (changed.mark, changed.state);
    }

    /// Records the mark and the connection state of the packets that the current rule or policy
    /// accepts.
    fn accepts(&mut self) {
        let changed = self.changed();
        join(&mut self.accepted, changed);
    }

    fn chain(&mut self, place: Place<'_>, name: &str, chain: &Chain) -> (May, End) {
        let mut walked = Walked { may: May::default(), end: None, left: None };
        let Some(rules) = &chain.rules else {
            self.misses(place, name, Part::Chain);
            return (May::anything(), End::Fall);
        };
        for (number, rule) in (1..).zip(rules) {
            self.rest = self.rest.saturating_sub(1);
            if self.rest == 0 {
                self.doubt.get_or_insert_with(|| "the ruleset has too many rules".to_owned());
                let may = May { accept: true, drop: true, fall: true, ..walked.may };
                return (may, walked.end.unwrap_or(End::Fall));
            }
            let at_base = place.depth == 0;
            let here = Place {
                number: if at_base { Some(number) } else { place.number },
                handle: if at_base { rule.handle } else { place.handle },
                ..place
            };
            let at = RuleAt { chain: name, number, rule };
            if self.rule(here, at, &mut walked) {
                // No packet continues after this rule.
                if let Some(left) = walked.left {
                    self.set(left);
                }
                return (walked.may, walked.end.unwrap_or(End::Fall));
            }
        }
        walked.may.fall = true;
        if let Some(left) = walked.left.take() {
            let all = left.or(&self.changed());
            self.set(all);
        }
        (walked.may, walked.end.unwrap_or(End::Fall))
    }

    /// True if none of the packets continues with the next rule.
    fn rule(&mut self, place: Place<'_>, at: RuleAt<'_>, walked: &mut Walked) -> bool {
        let (mut fits, mut named) = (Fits::Yes, place.named);
        for step in &at.rule.steps {
            match step {
                Step::When(condition) => {
                    let found = self.judge(place, condition);
                    named |= found == Fits::Yes
                        && !condition.negated
                        && condition.keys.iter().any(Key::is_whose);
                    fits = fits.min(found);
                    if fits == Fits::No {
                        return false;
                    }
                    if found == Fits::Perhaps {
                        self.doubts(place, at);
                    }
                }
                Step::Mark(kept, inverted) => {
                    let mark = self.mark.changed(*kept, *inverted);
                    self.mark = if fits == Fits::Yes { mark } else { self.mark.or(mark) };
                }
                Step::MarkUnknown => self.mark.known = 0,
                Step::Untrack => {
                    let untracked = Ranges::one(state::UNTRACKED);
                    self.state = if fits == Fits::Yes {
                        untracked
                    } else {
                        Ranges::union(&[self.state.clone(), untracked])
                    };
                }
                Step::Verdict(verdict) => {
                    let place = Place { named, ..place };
                    return self.verdict(place, at, verdict, fits, walked) && fits == Fits::Yes;
                }
                Step::Lookup(keys, source) => {
                    let place = Place { named, ..place };
                    return self.lookup(place, at, keys, source, fits, walked);
                }
            }
        }
        false
    }

    /// Evaluates a verdict map. True if none of the packets continues with the next rule.
    fn lookup(
        &mut self,
        place: Place<'_>,
        at: RuleAt<'_>,
        keys: &[Key],
        source: &Source,
        fits: Fits,
        walked: &mut Walked,
    ) -> bool {
        let Some(elements) = self.elements(place, source, Part::Map) else {
            self.doubts(place, at);
            return self.verdict(place, at, &Verdict::Unknown, Fits::Perhaps, walked);
        };
        let whose = keys.iter().any(Key::is_whose);
        for (values, verdict) in &elements.0 {
            let found = fits.min(self.element(place, keys, values));
            if found == Fits::No {
                continue;
            }
            if found == Fits::Perhaps {
                self.doubts(place, at);
            }
            let verdict = verdict.as_ref().unwrap_or(&Verdict::Unknown);
            let place = Place { named: place.named || whose && found == Fits::Yes, ..place };
            let decided = self.verdict(place, at, verdict, found, walked);
            // At most one element holds a value.
            if found == Fits::Yes {
                return decided;
            }
        }
        // Packets that the map does not hold continue after the rule.
        false
    }

    /// `fits` is `Yes` if the verdict applies to all packets that reach the rule. True if none of
    /// the packets continues with the next rule.
    fn verdict(
        &mut self,
        place: Place<'_>,
        at: RuleAt<'_>,
        verdict: &Verdict,
        fits: Fits,
        walked: &mut Walked,
    ) -> bool {
        let all = fits == Fits::Yes;
        match verdict {
            Verdict::Continue => false,
            Verdict::Accept => {
                walked.may.accept = true;
                walked.may.named |= place.named && all;
                self.accepts();
                walked.ends(all, End::Accept)
            }
            Verdict::Drop => {
                let stop = place.stop(at.chain, Some((at.number, at.rule)));
                if self.walk.over.contains(&stop) {
                    return false;
                }
                walked.may.drop = true;
                walked.ends(all, End::Drop(stop))
            }
            Verdict::Return => {
                walked.may.fall = true;
                join(&mut walked.left, self.changed());
                walked.ends(all, End::Fall)
            }
            Verdict::Unknown => {
                self.doubts(place, at);
                walked.may = May { accept: true, drop: true, fall: true, ..walked.may };
                self.mark.known = 0;
                self.accepts();
                join(&mut walked.left, self.changed());
                false
            }
            Verdict::Jump(name) => self.jump(place, at, name, false, all, walked),
            Verdict::Goto(name) => self.jump(place, at, name, true, all, walked),
        }
    }

    /// The packets return to this chain unless `is_goto` is true.
    fn jump(
        &mut self,
        place: Place<'_>,
        at: RuleAt<'_>,
        name: &str,
        is_goto: bool,
        all: bool,
        walked: &mut Walked,
    ) -> bool {
        let before = self.changed();
        let target = place.table.chains.get(name).filter(|_| place.depth < DEPTH);
        let (may, end) = match target {
            Some(target) => {
                let place = Place { depth: place.depth + 1, ..place };
                self.chain(place, name, target)
            }
            None => {
                if place.depth < DEPTH {
                    self.misses(place, name, Part::Chain);
                }
                self.doubts(place, at);
                (May::anything(), End::Fall)
            }
        };
        walked.may.accept |= may.accept;
        walked.may.drop |= may.drop;
        walked.may.named |= may.named && all;
        if is_goto && may.fall {
            walked.may.fall = true;
            join(&mut walked.left, self.changed());
        }
        if !all {
            let both = before.or(&self.changed());
            self.set(both);
            return false;
        }
        match end {
            End::Fall if !is_goto => {}
            end => walked.end = walked.end.take().or(Some(end)),
        }
        is_goto || !may.fall
    }

    fn judge(&mut self, place: Place<'_>, condition: &Condition) -> Fits {
        let Some(elements) = self.elements(place, &condition.source, Part::Set) else {
            return Fits::Perhaps;
        };
        let mut best = Fits::No;
        for (values, _) in &elements.0 {
            best = best.max(self.element(place, &condition.keys, values));
            if best == Fits::Yes {
                break;
            }
        }
        best.negated_if(condition.negated)
    }

    fn elements<'s>(
        &mut self,
        place: Place<'s>,
        source: &'s Source,
        part: Part,
    ) -> Option<&'s Elements> {
        match source {
            Source::Here(elements) => Some(elements),
            Source::Named(name) => {
                let known = place.table.sets.get(name);
                if known.is_none() {
                    self.misses(place, name, part);
                }
                known
            }
        }
    }

    /// Compares the packets with one element of a set or map.
    fn element(&mut self, place: Place<'_>, keys: &[Key], values: &[Value]) -> Fits {
        if keys.len() != values.len() {
            return Fits::Perhaps;
        }
        let mut fits = Fits::Yes;
        let mut partial = None;
        for (key, value) in keys.iter().zip(values) {
            let found = self.field(place, key, value);
            if found == Fits::Perhaps
                && partial.is_none()
                && let Value::Numbers(numbers) = value
            {
                partial = Some((key.clone(), numbers.clone()));
            }
            fits = fits.min(found);
            if fits == Fits::No {
                return fits;
            }
        }
        if fits == Fits::Perhaps && self.partial.is_none() {
            self.partial = partial.filter(|(key, by)| self.packet.divided(key, by).is_some());
        }
        fits
    }

    fn field(&self, place: Place<'_>, key: &Key, value: &Value) -> Fits {
        let tracked = !matches!(place.stage.hook, Hook::Prerouting | Hook::Output | Hook::Ingress)
            || place.base.priority > TRACKING;
        let port = |port: &Option<super::packet::Device>, name: &Name| {
            port.as_ref().map_or(Fits::Perhaps, |port| port.fits(name))
        };
        match (key, value) {
            (Key::Incoming, Value::Name(name)) => place.stage.incoming.fits(name),
            (Key::Outgoing, Value::Name(name)) => place.stage.outgoing.fits(name),
            (Key::PortIn, Value::Name(name)) => port(&place.stage.port_in, name),
            // Only packets that a bridge forwards from port to port have these.
            (Key::PortOut, Value::Name(name)) => super::packet::Device::none().fits(name),
            (Key::Bridged, Value::Numbers(numbers)) => Ranges::one(0_u32).within(numbers),
            (Key::Mark(mask), Value::Numbers(numbers)) => match mask & !self.mark.known {
                0 => Ranges::one(self.mark.value & mask).within(numbers),
                // The known bits may suffice to exclude the value.
                unknown => match numbers.single() {
                    Some(wanted)
                        if (u128::from(self.mark.value) ^ wanted) & u128::from(mask & !unknown)
                            != 0 =>
                    {
                        Fits::No
                    }
                    _ => Fits::Perhaps,
                },
            },
            // The bridge and netdev layers look up connections by themselves, or not at all.
            (Key::State, _) if matches!(place.stage.layer, Layer::Bridge | Layer::Netdev) => {
                Fits::Perhaps
            }
            // Before connections are looked up, packets have the state `invalid`, unless a rule has excluded them from tracking.
            (Key::State, Value::Numbers(numbers)) if !tracked => {
                match (place.base.priority == TRACKING, &self.state) {
                    (true, _) => Fits::Perhaps,
                    (_, state) if *state == Ranges::one(state::UNTRACKED) => state.within(numbers),
                    (_, state) if Ranges::one(state::UNTRACKED).within(state) == Fits::No => {
                        Ranges::one(state::INVALID).within(numbers)
                    }
                    _ => Fits::Perhaps,
                }
            }
            (Key::State, Value::Numbers(numbers)) => self.state.within(numbers),
            (Key::SourcePort | Key::DestinationPort, Value::Numbers(_)) if !self.has_ports() => {
                Fits::Perhaps
            }
            (key, Value::Numbers(numbers)) => {
                self.packet.numbers(key).map_or(Fits::Perhaps, |own| own.within(numbers))
            }
            _ => Fits::Perhaps,
        }
    }

    fn has_ports(&self) -> bool {
        let all: Vec<Ranges> = WITH_PORTS.iter().map(|protocol| Ranges::one(*protocol)).collect();
        self.packet.protocol.within(&Ranges::union(&all)) == Fits::Yes
    }

    /// Ignores tables of iptables, where an unknown name is not a chain but the target of an
    /// extension.
    fn misses(&mut self, place: Place<'_>, name: &str, part: Part) {
        if place.table.program == Program::Nft {
            let missing = Missing {
                layer: place.table.layer.name(),
                table: place.table.name.clone(),
                name: name.to_owned(),
                part,
            };
            self.doubt.get_or_insert_with(|| {
                format!(
                    "the listing lacks the {} {} {} {name}",
                    part.name(),
                    missing.layer,
                    missing.table
                )
            });
            self.missing.insert(missing);
        }
    }

    fn doubts(&mut self, place: Place<'_>, RuleAt { chain, rule, .. }: RuleAt<'_>) {
        let Table { layer, name, .. } = place.table;
        self.doubt.get_or_insert_with(|| match (&rule.handle, rule.text.as_str()) {
            (Some(handle), _) => {
                format!("a rule of {} {name} {chain}, handle {handle}", layer.name())
            }
            (None, text) => format!("the rule `{text}` of the table {name}"),
        });
    }
}

/// The intermediate result of the evaluation of a chain.
struct Walked {
    may: May,
    end: Option<End>,
    /// Mark and state of the packets that returned from the chain before its end.
    left: Option<Changed>,
}

impl Walked {
    /// Records the outcome of the chain if the verdict applies to all packets that reach the rule.
    /// The result is `all`.
    fn ends(&mut self, all: bool, end: End) -> bool {
        if all {
            self.end.get_or_insert(end);
        }
        all
    }
}
