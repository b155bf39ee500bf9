//! Follows a packet through the rules.
//!
//! The kernel calls the chains of all tables on a hook in order of their priority. A drop anywhere is final. An accept ends only the chain that the
//! kernel called. If the reader does not know whether packets fulfil a condition, the walk follows both possibilities.

use super::fits::Fits;
use super::model::{
    Base, Chain, Condition, Elements, Hook, Key, Layer, Name, Program, Rule, Rules, Source, Step,
    Table, Value, Verdict,
};
use super::packet::{Mark, Packet, Stage};
use super::ranges::Ranges;
use super::words::{WITH_PORTS, state};
use std::collections::BTreeSet;

/// The depth to which the kernel follows jumps.
const DEPTH: usize = 16;
/// Maximum number of rules that the walk evaluates for one result.
const RULES: usize = 100_000;
/// Maximum number of parts into which the walk divides a class of packets.
const PARTS: usize = 48;
/// The reason for an unknown fate if packets of a class have different fates.
const SOME: &str = "only some of the packets";
/// The priority at which the kernel looks up connections. No packet has a connection state before this priority.
const TRACKING: i32 = -200;

/// The rule or policy that drops packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stop {
    /// The program that created the table.
    pub program: Program,
    /// The family of the rule's table, as nft names it.
    pub layer: &'static str,
    /// The name of the table.
    pub table: String,
    /// The chain that the kernel called.
    pub base: String,
    /// The number of the rule in `base` that drops the packets, or that leads to the dropping rule. The first
    /// rule has number 1. The field is `None` if the chain's policy drops the packets.
    pub number: Option<usize>,
    /// The handle of the rule that `number` identifies.
    pub handle: Option<u64>,
    /// The chain that contains the dropping rule.
    pub chain: String,
    /// The number of the dropping rule in its chain.
    pub place: Option<usize>,
    /// The rule as iptables saves it. The field is empty for tables of other programs, and for a policy.
    pub rule: String,
    /// The number of packets that the rule has counted. The field is `None` for a policy, or for a rule without a counter.
    pub packets: Option<u64>,
    /// Whether the rule, or a rule that leads to it, selects the packets by interfaces or addresses.
    pub named: bool,
}

impl Stop {
    /// Returns whether a policy, not a rule, drops the packets.
    pub fn is_policy(&self) -> bool {
        self.number.is_none()
    }
}

/// The fate of a class of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All packets pass.
    Yes {
        /// Whether a rule that accepts the packets selects them by interfaces or addresses.
        named: bool,
    },
    /// Drop of all packets of the class.
    No(Stop),
    /// Fate that is unknown, or that differs between packets.
    Perhaps {
        /// The reason why the fate is unknown.
        why: String,
        /// The rule that drops all packets, unless the packets fulfil a condition that the reader does not understand.
        unless: Option<Stop>,
    },
}

impl Fate {
    /// Returns the rule or policy that drops the packets, certainly or possibly.
    pub fn stop(&self) -> Option<&Stop> {
        match self {
            Fate::Yes { .. } => None,
            Fate::No(stop) => Some(stop),
            Fate::Perhaps { unless, .. } => unless.as_ref(),
        }
    }

    /// Combines the fates of two classes of packets.
    fn and(self, other: Fate) -> Fate {
        match (self, other) {
            (Fate::Yes { named }, Fate::Yes { named: also }) => Fate::Yes {
                named: named && also,
            },
            (Fate::No(stop), Fate::No(_)) => Fate::No(stop),
            (one, other) => {
                let why = [&one, &other].into_iter().find_map(|fate| {
                    if let Fate::Perhaps { why, .. } = fate {
                        Some(why.clone())
                    } else {
                        None
                    }
                });
                let unless = one.stop().filter(|_| other.stop().is_some()).cloned();
                Fate::Perhaps {
                    why: why.unwrap_or_else(|| SOME.to_owned()),
                    unless,
                }
            }
        }
    }
}

/// A part of a table that the walk needs but that the listing lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// The table's family, as nft names it.
    pub layer: &'static str,
    /// The name of the table.
    pub table: String,
    /// The name of the part.
    pub name: String,
    /// The kind of part.
    pub part: Part,
}

/// A part of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A chain.
    Chain,
    /// A named set.
    Set,
    /// A named map.
    Map,
}

impl Part {
    /// Returns the part's name in nft commands.
    pub fn name(self) -> &'static str {
        match self {
            Part::Chain => "chain",
            Part::Set => "set",
            Part::Map => "map",
        }
    }
}

/// A walk of packets through rules.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    rules: &'a Rules,
    /// Selects the chains that the kernel calls. By default, the function selects all chains.
    only: &'a dyn Fn(&Table, &str, &Base) -> bool,
    /// The rules and policies whose drops the walk ignores.
    over: &'a [Stop],
}

impl<'a> Walk<'a> {
    /// Creates a walk through all rules.
    pub fn through(rules: &'a Rules) -> Self {
        Self {
            rules,
            only: &|_, _, _| true,
            over: &[],
        }
    }

    /// Restricts the walk to the base chains for which `only` returns true.
    #[must_use]
    pub fn only(self, only: &'a dyn Fn(&Table, &str, &Base) -> bool) -> Self {
        Self { only, ..self }
    }

    /// Returns the fate of a class of packets.
    pub fn fate(&self, packet: &Packet) -> Fate {
        self.both(packet).0
    }

    /// Returns the rules and policies that drop the packets, in order. Each item applies when the items
    /// before it no longer drop the packets. The flag is true if a condition that the reader does not
    /// understand may let the packets pass.
    pub fn stops(&self, packet: &Packet) -> Vec<(Stop, bool)> {
        let mut found: Vec<(Stop, bool)> = Vec::new();
        let mut fate = self.fate(packet);
        while let Some(stop) = fate.stop().cloned()
            && found.len() < DEPTH
            && !found.iter().any(|(known, _)| *known == stop)
        {
            found.push((stop, !matches!(fate, Fate::No(_))));
            let over: Vec<Stop> = found.iter().map(|(stop, _)| stop.clone()).collect();
            fate = Walk {
                over: &over,
                ..*self
            }
            .fate(packet);
        }
        found
    }

    /// Returns the parts of tables on a packet's path that the listing lacks.
    pub fn missing(&self, packet: &Packet) -> BTreeSet<Missing> {
        self.both(packet).1
    }

    fn both(&self, packet: &Packet) -> (Fate, BTreeSet<Missing>) {
        let (mut parts, mut rest, mut missing) = (PARTS, RULES, BTreeSet::new());
        let fates = packet
            .by_bridge()
            .into_iter()
            .map(|packet| self.divide(&packet, &mut parts, &mut rest, &mut missing));
        let fate = fates
            .reduce(Fate::and)
            .unwrap_or(Fate::Yes { named: false });
        (fate, missing)
    }

    /// Determines the fate of all packets at once, or of both parts if a condition divides the packets.
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
        let divided = steps
            .partial
            .filter(|_| *parts > 0 && matches!(fate, Fate::Perhaps { .. }));
        match divided.and_then(|(key, by)| packet.divided(&key, &by)) {
            Some([some, others]) => self
                .divide(&some, parts, rest, missing)
                .and(self.divide(&others, parts, rest, missing)),
            None => fate,
        }
    }
}

/// The possible fates of packets in a chain.
#[derive(Clone, Debug, Default)]
struct May {
    accept: bool,
    drop: bool,
    /// Whether packets may leave the chain without a verdict.
    fall: bool,
    /// Whether a rule that accepts the packets selects them by interfaces or addresses.
    named: bool,
}

impl May {
    /// Returns the possible fates of packets in an unknown chain.
    fn anything() -> Self {
        Self {
            accept: true,
            drop: true,
            fall: true,
            named: false,
        }
    }
}

/// The exit of packets from a chain, if they fulfil none of the conditions that the reader does not understand.
#[derive(Clone, Debug)]
enum End {
    Accept,
    Drop(Stop),
    Fall,
}

/// The changes that previous rules made to the packets.
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

/// The position of the walk: the table, the base chain, and the rule in it.
#[derive(Clone, Copy)]
struct Place<'a> {
    table: &'a Table,
    name: &'a str,
    base: &'a Base,
    stage: &'a Stage,
    number: Option<usize>,
    handle: Option<u64>,
    /// Whether a rule that led to this position selects the packets by interfaces or addresses.
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

/// A rule, its chain, and its number in that chain.
#[derive(Clone, Copy)]
struct RuleAt<'a> {
    chain: &'a str,
    number: usize,
    rule: &'a Rule,
}

/// One walk of one class of packets.
struct Steps<'a, 'b> {
    walk: &'a Walk<'a>,
    packet: &'a Packet,
    /// The number of rules that the walk may still evaluate.
    rest: usize,
    mark: Mark,
    state: Ranges,
    /// The changes for the packets that the current base chain has accepted.
    accepted: Option<Changed>,
    /// The first condition that only some of the packets fulfil.
    partial: Option<(Key, Ranges)>,
    /// The reason why a fate is unknown.
    doubt: Option<String>,
    missing: &'b mut BTreeSet<Missing>,
}

impl<'a> Steps<'a, '_> {
    fn run(&mut self) -> Fate {
        let (mut stop, mut may_drop, mut named) = (None, false, false);
        for stage in self.packet.stages() {
            let mut bases: Vec<(&Table, &String, &Chain, &Base)> = Vec::new();
            for table in self
                .walk
                .rules
                .tables
                .iter()
                .filter(|table| table.layer.sees(stage.layer))
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
                    Some(device) => stage.incoming.fits(&Name {
                        text: device.clone(),
                        is_prefix: false,
                    }),
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
                        None => Fate::Perhaps {
                            why: self.doubt(),
                            unless: None,
                        },
                    };
                }
            }
        }
        if may_drop {
            Fate::Perhaps {
                why: self.doubt(),
                unless: stop,
            }
        } else {
            Fate::Yes { named }
        }
    }

    fn doubt(&self) -> String {
        self.doubt.clone().unwrap_or_else(|| SOME.to_owned())
    }

    /// Follows the rules of a base chain, and then applies its policy.
    fn base(&mut self, place: Place<'_>, chain: &Chain) -> (May, End) {
        self.accepted = None;
        let (mut may, mut end) = self.chain(place, place.name, chain);
        if may.fall {
            let policy = place.stop(place.name, None);
            let drops = place.base.drops && !self.walk.over.contains(&policy);
            may.drop |= drops;
            may.accept |= !drops;
            if matches!(end, End::Fall) {
                end = if drops {
                    End::Drop(policy)
                } else {
                    End::Accept
                };
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
        Changed {
            mark: self.mark,
            state: self.state.clone(),
        }
    }

    fn set(&mut self, changed: Changed) {
        (self.mark, self.state) = (changed.mark, changed.state);
    }

    /// Records the changes by previous rules for packets that leave with an accept verdict at this point.
    fn accepts(&mut self) {
        let changed = self.changed();
        join(&mut self.accepted, changed);
    }

    /// Follows the rules of a chain.
    fn chain(&mut self, place: Place<'_>, name: &str, chain: &Chain) -> (May, End) {
        let mut walked = Walked {
            may: May::default(),
            end: None,
            left: None,
        };
        let Some(rules) = &chain.rules else {
            self.misses(place, name, Part::Chain);
            return (May::anything(), End::Fall);
        };
        for (number, rule) in (1..).zip(rules) {
            self.rest = self.rest.saturating_sub(1);
            if self.rest == 0 {
                self.doubt
                    .get_or_insert_with(|| "the ruleset has too many rules".to_owned());
                let may = May {
                    accept: true,
                    drop: true,
                    fall: true,
                    ..walked.may
                };
                return (may, walked.end.unwrap_or(End::Fall));
            }
            let at_base = place.depth == 0;
            let here = Place {
                number: if at_base { Some(number) } else { place.number },
                handle: if at_base { rule.handle } else { place.handle },
                ..place
            };
            let at = RuleAt {
                chain: name,
                number,
                rule,
            };
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

    /// Evaluates a rule. Returns whether the rule decides about all packets that reach the rule.
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
                    self.mark = if fits == Fits::Yes {
                        mark
                    } else {
                        self.mark.or(mark)
                    };
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

    /// Evaluates a verdict map. Returns whether the rule decides about all packets that reach the rule.
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
            let place = Place {
                named: place.named || whose && found == Fits::Yes,
                ..place
            };
            let decided = self.verdict(place, at, verdict, found, walked);
            // At most one element holds a value.
            if found == Fits::Yes {
                return decided;
            }
        }
        // Packets that the map does not hold continue after the rule.
        false
    }

    /// Records the effect of a verdict on the packets to which it applies. Returns whether none of the packets continues after the rule.
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
                walked.may = May {
                    accept: true,
                    drop: true,
                    fall: true,
                    ..walked.may
                };
                self.mark.known = 0;
                self.accepts();
                join(&mut walked.left, self.changed());
                false
            }
            Verdict::Jump(name) => self.jump(place, at, name, false, all, walked),
            Verdict::Goto(name) => self.jump(place, at, name, true, all, walked),
        }
    }

    /// Follows the packets into another chain, from which they return unless `is_goto`.
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
                let place = Place {
                    depth: place.depth + 1,
                    ..place
                };
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

    /// Returns whether the packets fulfil a condition.
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

    /// Returns whether the packets' fields have the values of one element.
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
        let tracked = !matches!(
            place.stage.hook,
            Hook::Prerouting | Hook::Output | Hook::Ingress
        ) || place.base.priority > TRACKING;
        let port = |port: &Option<super::packet::Device>, name: &Name| {
            port.as_ref().map_or(Fits::Perhaps, |port| port.fits(name))
        };
        match (key, value) {
            (Key::Incoming, Value::Name(name)) => place.stage.incoming.fits(name),
            (Key::Outgoing, Value::Name(name)) => place.stage.outgoing.fits(name),
            (Key::PortIn, Value::Name(name)) => port(&place.stage.port_in, name),
            (Key::PortOut, Value::Name(name)) => port(&place.stage.port_out, name),
            (Key::Bridged, Value::Numbers(numbers)) => {
                Ranges::one(u32::from(place.stage.bridged)).within(numbers)
            }
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
            (key, Value::Numbers(numbers)) => self
                .packet
                .numbers(key)
                .map_or(Fits::Perhaps, |own| own.within(numbers)),
            _ => Fits::Perhaps,
        }
    }

    fn has_ports(&self) -> bool {
        let all: Vec<Ranges> = WITH_PORTS
            .iter()
            .map(|protocol| Ranges::one(*protocol))
            .collect();
        self.packet.protocol.within(&Ranges::union(&all)) == Fits::Yes
    }

    /// Records a missing part. In tables of iptables, a name that the listing lacks is not a chain but the target of an extension.
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
        self.doubt
            .get_or_insert_with(|| match (&rule.handle, rule.text.as_str()) {
                (Some(handle), _) => {
                    format!("a rule of {} {name} {chain}, handle {handle}", layer.name())
                }
                (None, text) => format!("the rule `{text}` of the table {name}"),
            });
    }
}

/// The result of the walk through a chain so far.
struct Walked {
    may: May,
    end: Option<End>,
    /// The changes for the packets that have left the chain.
    left: Option<Changed>,
}

impl Walked {
    /// Records an end if it applies to all packets that reach it. Returns whether the method recorded the end.
    fn ends(&mut self, all: bool, end: End) -> bool {
        if all {
            self.end.get_or_insert(end);
        }
        all
    }
}
