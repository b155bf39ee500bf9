use super::iptables_text::restore_input;
use super::nftables_text;
use super::programs::Variant;
use super::rules::{Encap, GuardOptions, RuleOptions, Ruleset, UnknownSenders};
use super::*;
use ipnet::IpNet;
use std::net::IpAddr;
use std::time::Duration;
use types::{Dual, Encapsulation, Family};

fn options() -> RuleOptions {
    RuleOptions {
        masquerade: true,
        fully_random: true,
        masquerade_inbound: true,
        non_masquerade: Vec::new(),
        forward: true,
        forward_insert: false,
        guard: GuardOptions::default(),
    }
}

/// Converts the output of `iptables -S` for one family to the format of `iptables-save`.
fn saved(section: &str) -> String {
    let mut out = String::new();
    for (table, text) in [("nat", "-t nat -S"), ("filter", "-t filter -S")] {
        out.push_str(&format!("*{table}\n"));
        let lines = section
            .split("# ")
            .find(|part| part.lines().next().is_some_and(|line| line.ends_with(text)))
            .unwrap();
        for line in lines.lines().skip(1) {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["-P", chain, policy] => out.push_str(&format!(":{chain} {policy} [0:0]\n")),
                ["-N", chain] => out.push_str(&format!(":{chain} - [0:0]\n")),
                _ => out.push_str(&format!("{line}\n")),
            }
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// As `iptables-restore --noflush` applies it to the kernel.
fn restored(saved: &str, payload: &str) -> String {
    let mut tables: Vec<(String, Vec<String>, Vec<String>)> = Vec::new();
    let mut at = 0;
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            tables.push((name.to_owned(), Vec::new(), Vec::new()));
        } else if let Some((_, chains, rules)) = tables.last_mut() {
            match line {
                "COMMIT" => {}
                line if line.starts_with(':') => chains.push(line.to_owned()),
                line => rules.push(line.to_owned()),
            }
        }
    }
    let chain_of = |line: &str| line.split(' ').nth(1).unwrap().to_owned();
    for line in payload.lines() {
        if let Some(name) = line.strip_prefix('*') {
            at = tables.iter().position(|(table, ..)| table == name).unwrap_or(tables.len());
            if at == tables.len() {
                tables.push((name.to_owned(), Vec::new(), Vec::new()));
            }
            continue;
        }
        let (_, chains, rules) = &mut tables[at];
        if let Some(rest) = line.strip_prefix(':') {
            let name = rest.split(' ').next().unwrap();
            rules.retain(|rule| chain_of(rule) != name);
            if !chains.iter().any(|chain| chain[1..].starts_with(&format!("{name} "))) {
                chains.push(line.to_owned());
            }
        } else if let Some(rest) = line.strip_prefix("-D ") {
            let wanted = format!("-A {rest}");
            let found = rules
                .iter()
                .position(|rule| *rule == wanted)
                .unwrap_or_else(|| panic!("-D of a missing rule: {line}"));
            rules.remove(found);
        } else if line.starts_with("-A ") {
            rules.push(line.to_owned());
        } else if let Some(rest) = line.strip_prefix("-I ") {
            let rule = format!("-A {rest}");
            let first = rules
                .iter()
                .position(|other| chain_of(other) == chain_of(&rule))
                .unwrap_or(rules.len());
            rules.insert(first, rule);
        } else if let Some(name) = line.strip_prefix("-F ") {
            rules.retain(|rule| chain_of(rule) != name);
        } else if let Some(name) = line.strip_prefix("-X ") {
            assert!(
                !rules.iter().any(|rule| rule.ends_with(&format!("-j {name}"))),
                "-X of a chain in use"
            );
            chains.retain(|chain| !chain[1..].starts_with(&format!("{name} ")));
        } else {
            assert_eq!(line, "COMMIT");
        }
    }
    tables
        .iter()
        .map(|(table, chains, rules)| {
            format!(
                "*{table}\n{}\n{}COMMIT\n",
                chains.join("\n"),
                rules.iter().map(|rule| format!("{rule}\n")).collect::<String>()
            )
        })
        .collect()
}

const EMPTY: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";

/// flanneld writes the rules that Go flannel wrote in recorded runs, and writes nothing if they are
/// already in place.
#[test]
fn golden_rules() {
    for case in ["masq-plain", "masq-dual", "masq-noforward", "vxlan-dual"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../flanneld/tests/golden")
            .join(case);
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        let (env, flags, capture) = (read("subnet.env"), read("flags"), read("iptables.txt"));
        let value =
            |key: &str| env.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let v4 = |key: &str| value(key).map(|net| net.parse::<ipnet::Ipv4Net>().unwrap().trunc());
        let v6 = |key: &str| value(key).map(|net| net.parse::<ipnet::Ipv6Net>().unwrap().trunc());
        let options = RuleOptions {
            masquerade: flags.contains("--ip-masq"),
            fully_random: !flags.contains("--ip-masq-fully-random-disable"),
            forward: !flags.contains("--iptables-forward-rules=false"),
            ..options()
        };
        let wanted = Wanted {
            networks: Dual::from_options(v4("FLANNEL_NETWORK"), v6("FLANNEL_IPV6_NETWORK"))
                .unwrap(),
            own: Dual::from_options(v4("FLANNEL_SUBNET"), v6("FLANNEL_IPV6_SUBNET")).unwrap(),
            ..wanted_of(Family::V4, options)
        };
        let (v4, v6) = capture
            .split_once("# ip6tables -t nat")
            .map(|(v4, v6)| (v4.to_owned(), format!("# ip6tables -t nat{v6}")))
            .unwrap();
        for rules in wanted.rulesets() {
            let golden = saved(rules.family.pick(&v4, &v6));
            assert_eq!(restore_input(&rules, &golden), None, "{case}");
            let ours = written(&rules, EMPTY);
            let sorted = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
            assert_eq!(sorted(&ours), sorted(&golden), "{case}");
        }
    }
}

/// Without a guard.
fn wanted_of(family: Family, options: RuleOptions) -> Wanted {
    let (network, own) = networks(family);
    Wanted {
        networks: network.into(),
        own: own.into(),
        options,
        nftables: false,
        resync: Duration::from_secs(60),
        encapsulation: Encapsulation::None,
        hosts: BTreeSet::new(),
        peers: BTreeSet::new(),
        slot: 0,
        others: OtherDaemons::default(),
    }
}

fn rules_of(family: Family, options: &RuleOptions) -> Ruleset {
    wanted_of(family, options.clone()).rulesets().remove(0)
}

fn no_rules(family: Family) -> Ruleset {
    rules_of(family, &RuleOptions { masquerade: false, forward: false, ..options() })
}

/// `None` if the family has no rules.
fn guard_of(wanted: &Wanted, family: Family) -> Option<Encap> {
    wanted.rulesets().into_iter().find(|rules| rules.family == family)?.encap
}

fn rules() -> Ruleset {
    rules_of(Family::V4, &options())
}

/// The cluster network and the node's subnet.
fn networks(family: Family) -> (IpNet, IpNet) {
    let (network, own) =
        family.pick(("10.5.0.0/16", "10.5.1.0/24"), ("fd00:5::/48", "fd00:5:0:1::/64"));
    (network.parse().unwrap(), own.parse().unwrap())
}

fn guard_options(unknown_senders: UnknownSenders) -> GuardOptions {
    GuardOptions { notrack: true, unknown_senders, bar_pods: true }
}

fn addresses(all: &[&str]) -> BTreeSet<IpAddr> {
    all.iter().map(|ip| ip.parse().unwrap()).collect()
}

/// What `iptables-save` prints after the rules were written to `saved`.
fn written(rules: &Ruleset, saved: &str) -> String {
    match restore_input(rules, saved) {
        Some(payload) => restored(saved, &payload),
        None => saved.to_owned(),
    }
}

#[test]
fn non_masquerade_and_inbound() {
    let chosen = RuleOptions {
        non_masquerade: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
        masquerade_inbound: false,
        ..options()
    };
    let text = restore_input(&rules_of(Family::V4, &chosen), EMPTY).unwrap();
    assert!(text.contains("-A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.0.0.0/8 -m comment --comment \"flanneld masq\" -j RETURN\n"), "{text}");
    assert!(!text.contains("fd00") && !text.contains("! -s 10.5.0.0/16 -d 10.5.0.0/16"), "{text}");
}

#[test]
fn insertion_moves_the_jump_to_the_front() {
    let first = Ruleset { forward_insert: true, ..rules() };
    let there = written(&rules(), EMPTY);
    let with_reject = there.replace("-A FORWARD -m", "-A FORWARD -j REJECT\n-A FORWARD -m");
    let after = written(&first, &with_reject);
    let forward: Vec<&str> = after.lines().filter(|line| line.starts_with("-A FORWARD")).collect();
    assert!(forward[0].ends_with("FLANNEL-FWD") && forward.len() == 2, "{forward:?}");
    assert_eq!(restore_input(&first, &after), None);
    // An appended jump may be at any position.
    assert_eq!(restore_input(&rules(), &with_reject), None);
}

/// What stays after the removal of all rules that neither another daemon nor the slot in use needs.
fn cleared(saved: &str, others: &OtherDaemons, in_use: Option<u16>) -> String {
    match iptables_text::removal(saved, others, in_use) {
        Some((payload, _)) => restored(saved, &payload),
        None => saved.to_owned(),
    }
}

/// Go flannel v0.17 to v0.19 wrote rules directly into the built-in chains.
#[test]
fn rules_of_old_versions_are_removed() {
    let old = EMPTY.replace(
        ":POSTROUTING ACCEPT [0:0]\n",
        ":POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment \"flanneld masq\" -j RETURN\n-A POSTROUTING -s 1.2.3.0/24 -j MASQUERADE\n",
    );
    let nobody = rules().others;
    let new = written(&rules(), &old);
    let after = cleared(&new, &nobody, Some(0));
    assert!(
        !after.contains("-A POSTROUTING -s 10.5.0.0/16")
            && after.contains("-A POSTROUTING -s 1.2.3.0/24 -j MASQUERADE")
    );
    assert_eq!(restore_input(&rules(), &after), None);
    let gone = cleared(&new, &nobody, None);
    assert!(!gone.contains("FLANNEL") && gone.contains("1.2.3.0/24"), "{gone}");
    assert_eq!(iptables_text::removal(&gone, &nobody, None), None);
}

/// Adds all guard rules for UDP port 8472.
fn guarded(rules: Ruleset, unknown_senders: UnknownSenders, peers: &[&str]) -> Ruleset {
    let guard_options = guard_options(unknown_senders);
    let wanted = Wanted {
        encapsulation: Encapsulation::udp(8472),
        hosts: addresses(&["192.168.56.101", "fd00:56::101"]),
        peers: addresses(peers),
        ..wanted_of(rules.family, RuleOptions { guard: guard_options, ..options() })
    };
    Ruleset { encap: guard_of(&wanted, rules.family), ..rules }
}

/// Rules of ours deleted, doubled, swapped or changed, whatever was wanted before and is wanted now.
#[test]
fn one_restore_repairs_any_damage_to_iptables() {
    use rand::{Rng, SeedableRng};
    let mut random = rand::rngs::StdRng::seed_from_u64(1);
    let foreign = [
        "-A POSTROUTING -s 1.2.3.0/24 -j MASQUERADE\n",
        "-A FORWARD -i docker0 -j DROP\n",
        "-A PREROUTING -s 1.2.3.4/32 -j DROP\n",
    ];
    let mut base = format!("{EMPTY}*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n");
    for (table, rule) in ["*nat", "*filter", "*raw"].into_iter().zip(foreign) {
        let table = base.find(table).unwrap();
        let end = table + base[table..].find("COMMIT").unwrap();
        base.insert_str(end, rule);
    }
    let senders = [UnknownSenders::Off, UnknownSenders::Count, UnknownSenders::Drop];
    for _ in 0..2000 {
        let mut choose = || {
            let mut yes = || random.random::<bool>();
            let chosen = RuleOptions {
                masquerade: yes(),
                forward: yes(),
                forward_insert: yes(),
                ..options()
            };
            let (rules, is_guarded) = (rules_of(Family::V4, &chosen), yes());
            let peers: &[&str] = if yes() { &["192.168.56.102"] } else { &["192.168.56.103"] };
            let guarded = guarded(rules.clone(), senders[random.random_range(0..3)], peers);
            if is_guarded { guarded } else { rules }
        };
        let (before, now) = (choose(), choose());
        let first = written(&before, &base);
        let mut lines: Vec<String> = first.lines().map(str::to_owned).collect();
        for _ in 0..random.random_range(0..6) {
            let is_ours = |line: &String| line.starts_with("-A") && line.contains("flanneld");
            let ours: Vec<usize> = (0..lines.len()).filter(|at| is_ours(&lines[*at])).collect();
            if ours.is_empty() {
                break;
            }
            let at = ours[random.random_range(0..ours.len())];
            match random.random_range(0..4) {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 if lines[at + 1].starts_with("-A") => lines.swap(at, at + 1),
                _ => {
                    lines[at] = lines[at]
                        .replace("8472", "4789")
                        .replace("-j ACCEPT", "-j DROP")
                        .replace("0.0.0/4", "0.0.0/8");
                }
            }
        }
        let damaged = format!("{}\n", lines.join("\n"));
        let after = written(&now, &damaged);
        assert_eq!(restore_input(&now, &after), None, "one pass is enough\n{damaged}\n{after}");
        for rule in foreign {
            assert!(after.contains(rule), "{damaged}\n{after}");
        }
        for chain in ["FLANNEL-POSTRTG", "FLANNEL-FWD", "FLANNEL-ENCAP"] {
            let of = |saved: &str| -> Vec<String> {
                let own = format!("-A {chain}");
                saved.lines().filter(|line| line.starts_with(&own)).map(str::to_owned).collect()
            };
            assert_eq!(of(&after), of(&written(&now, EMPTY)), "{damaged}\n{after}");
        }
    }
}

#[test]
fn the_encapsulation_port_is_guarded() {
    let peers = ["192.168.56.102", "fd00:56::102"];
    let text = restore_input(&guarded(rules(), UnknownSenders::Drop, &peers), EMPTY).unwrap();
    let raw = text.split("*raw\n").nth(1).unwrap();
    let c = "-m comment --comment \"flanneld encap\"";
    assert_eq!(
        raw,
        format!(
            ":FLANNEL-ENCAP - [0:0]\n\
             -A FLANNEL-ENCAP ! -d 10.5.0.0/16 -m addrtype --src-type LOCAL {c} -j CT --notrack\n\
             -A FLANNEL-ENCAP -m addrtype --dst-type LOCAL {c} -j CT --notrack\n\
             -A FLANNEL-ENCAP -s 10.5.0.0/16 ! -d 10.5.0.0/16 {c} -j DROP\n\
             -A FLANNEL-ENCAP -s 10.5.0.0/16 -m addrtype --dst-type LOCAL {c} -j DROP\n\
             -A FLANNEL-ENCAP -s 192.168.56.102/32 {c} -j RETURN\n\
             -A FLANNEL-ENCAP -m addrtype --dst-type LOCAL {c} -j DROP\n\
             -A PREROUTING -p udp -m udp --dport 8472 {c} -j FLANNEL-ENCAP\n\
             -A OUTPUT -p udp -m udp --dport 8472 {c} -j FLANNEL-ENCAP\nCOMMIT\n"
        )
    );
    let saved = raw.replace("\n-A", "\n[7:900] -A");
    assert_eq!(iptables_text::unknown_senders(&saved, 0), Some(7));
    assert_eq!(iptables_text::unknown_senders(raw, 0), None, "the output has no counts");
    // Without options there is no guard.
    let port =
        Wanted { encapsulation: Encapsulation::udp(8472), ..wanted_of(Family::V4, options()) };
    assert_eq!(guard_of(&port, Family::V4), None);
}

/// The node network lies inside the pod network.
#[test]
fn nodes_inside_the_pod_network_are_not_pods() {
    let hosts = addresses(&["10.5.200.1"]);
    let options = RuleOptions {
        masquerade: false,
        forward: false,
        guard: guard_options(UnknownSenders::Off),
        ..options()
    };
    let wanted = Wanted {
        encapsulation: Encapsulation::udp(8472),
        hosts: hosts.clone(),
        peers: hosts,
        ..wanted_of(Family::V4, options)
    };
    let rules = wanted.rulesets().remove(0);
    let text = restore_input(&rules, "").unwrap();
    assert!(!text.contains(" -s 10.5.0.0/16") && text.contains(" -s 10.5.1.0/24 "), "{text}");
    assert!(text.contains("-A FLANNEL-ENCAP -m addrtype --src-type LOCAL -m comment"), "{text}");
}

#[test]
fn the_variant_is_picked_by_existing_rules() {
    let (kube, docker, plain) = (
        "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\n",
        "*filter\n:DOCKER - [0:0]\n-A DOCKER -j RETURN\n",
        // Another program's rule about our device is no rule of ours.
        "*filter\n-A INPUT -i flannel.1 -j DROP\n",
    );
    let ours = restore_input(&rules(), EMPTY).unwrap();
    let candidate = |variant, saved: &str, is_system| {
        let programs = Iptables { family: Family::V4, command: String::new(), variant };
        (programs, saved.to_owned(), is_system)
    };
    let both = |nft: &str, legacy: &str| {
        [candidate(Variant::Nft, nft, true), candidate(Variant::Legacy, legacy, false)]
    };
    // The rules in nf_tables (the system default), the rules in legacy, the expected choice, and whether a warning is expected.
    for (nft, legacy, picked, warned) in [
        (EMPTY, EMPTY, Variant::Nft, false),
        (EMPTY, ours.as_str(), Variant::Legacy, false),
        (kube, ours.as_str(), Variant::Legacy, false),
        (ours.as_str(), ours.as_str(), Variant::Nft, false),
        (docker, kube, Variant::Legacy, true),
        (kube, docker, Variant::Nft, true),
        (plain, docker, Variant::Legacy, true),
        (plain, plain, Variant::Nft, true),
        (plain, EMPTY, Variant::Nft, false),
    ] {
        let pick = pick_variant(&both(nft, legacy)).unwrap();
        assert_eq!(
            (pick.index == 0, pick.warning.is_some()),
            (picked == Variant::Nft, warned),
            "{nft} {legacy} {pick:?}"
        );
    }
    let warning = pick_variant(&both(docker, kube)).unwrap().warning.unwrap();
    assert!(
        warning.contains("nf_tables: DOCKER") && warning.contains("legacy: KUBE-SERVICES"),
        "{warning}"
    );
    assert_eq!(pick_variant(&[]), None);
    assert_eq!(
        pick_variant(&[candidate(Variant::Legacy, EMPTY, false)]).unwrap().why,
        "it is the only installed variant"
    );
}

/// Empty if the rules are in place.
fn script_of(rules: &Ruleset, listing: Option<&serde_json::Value>) -> String {
    nftables_text::update_script(rules, listing).unwrap_or_default()
}

fn are_in_place(rules: &Ruleset, listing: Option<&serde_json::Value>) -> bool {
    nftables_text::update_script(rules, listing).is_none()
}

/// All listings that differ from this one in one detail: they lack a rule, chain or set, repeat a
/// rule, or differ in one word or number of an expression or chain.
fn changes(listing: &serde_json::Value) -> Vec<(String, serde_json::Value)> {
    fn leaves(value: &serde_json::Value, path: &str, out: &mut Vec<String>) {
        match value {
            serde_json::Value::Array(list) => list
                .iter()
                .enumerate()
                .for_each(|(at, value)| leaves(value, &format!("{path}/{at}"), out)),
            serde_json::Value::Object(map) => {
                map.iter().for_each(|(key, value)| leaves(value, &format!("{path}/{key}"), out));
            }
            serde_json::Value::Null => {}
            _ => out.push(path.to_owned()),
        }
    }
    let mut out = Vec::new();
    for (at, item) in listing["nftables"].as_array().unwrap().iter().enumerate() {
        let kind = item.as_object().unwrap().keys().next().unwrap().clone();
        let checked: &[&str] = match kind.as_str() {
            "rule" => &["expr", "comment", "chain"],
            "chain" => &["name", "type", "hook", "prio", "policy"],
            "set" => &["name", "elem"],
            _ => continue,
        };
        let mut without = listing.clone();
        without["nftables"].as_array_mut().unwrap().remove(at);
        out.push((format!("without {item}"), without));
        if kind == "rule" {
            let mut twice = listing.clone();
            twice["nftables"].as_array_mut().unwrap().insert(at, item.clone());
            out.push((format!("twice {item}"), twice));
        }
        for field in checked.iter().filter(|field| !item[&kind][**field].is_null()) {
            let mut paths = Vec::new();
            leaves(&item[&kind][*field], &format!("/nftables/{at}/{kind}/{field}"), &mut paths);
            for path in paths {
                let mut changed = listing.clone();
                let leaf = changed.pointer_mut(&path).unwrap();
                // The table's family allows no other protocol, and nft refuses it.
                if path.ends_with("/payload/protocol")
                    && leaf.as_str().is_some_and(|protocol| protocol.starts_with("ip"))
                {
                    continue;
                }
                *leaf = match &*leaf {
                    serde_json::Value::Number(number) => {
                        serde_json::json!(number.as_i64().unwrap() + 1)
                    }
                    serde_json::Value::Bool(is) => serde_json::json!(!is),
                    other => serde_json::json!(format!("x{}", other.as_str().unwrap())),
                };
                out.push((format!("{path} of {item}"), changed));
            }
        }
    }
    out
}

/// In the output of the real nft, flanneld recognises its own rules and detects every change.
#[test]
fn nft_output_is_recognised() {
    for family in Family::ALL {
        for (masquerade, forward, fully_random, unknown_senders) in [
            (true, true, true, None),
            (true, false, false, Some(UnknownSenders::Off)),
            (false, true, true, Some(UnknownSenders::Count)),
            (false, false, false, None),
            (false, false, false, Some(UnknownSenders::Drop)),
        ] {
            let chosen = RuleOptions {
                masquerade,
                forward,
                fully_random,
                non_masquerade: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
                ..options()
            };
            let plain = rules_of(family, &chosen);
            let rules = match unknown_senders {
                Some(unknown) => {
                    guarded(plain.clone(), unknown, &["192.168.56.102", "fd00:56::102"])
                }
                None => plain.clone(),
            };
            let listing = in_namespace(&script_of(&rules, None), family);
            let is_held = |rules: &Ruleset| are_in_place(rules, listing.as_ref());
            assert!(is_held(&rules), "{rules:?}\n{listing:?}");
            for (what, changed) in listing.as_ref().map(changes).unwrap_or_default() {
                assert!(!are_in_place(&rules, Some(&changed)), "unnoticed: {what}");
            }
            let mut other = rules.clone();
            if let Some(masquerade) = &mut other.masquerade {
                masquerade.truncate(1);
                assert!(!is_held(&other));
            }
            let mut other = rules.clone();
            if let Some(encap) = &mut other.encap {
                assert!(!is_held(&plain));
                encap.encapsulation = Encapsulation::udp(1);
                assert!(!is_held(&other));
            }
        }
    }
}

/// flanneld recognises its own rules in the output of both variants, so it writes them only once.
#[test]
fn iptables_output_is_recognised() {
    for family in Family::ALL {
        for unknown_senders in [UnknownSenders::Off, UnknownSenders::Count, UnknownSenders::Drop] {
            let peers = ["192.168.56.102", "fd00:56::102", "fd00:56:0:0:1::"];
            let rules = guarded(rules_of(family, &options()), unknown_senders, &peers);
            for variant in ["nft", "legacy"] {
                let command = format!("{}-{variant}", family.pick("iptables", "ip6tables"));
                let payload_of_all = restore_input(&rules, "").unwrap();
                let saved = netns(&format!(
                    "{command}-restore --noflush <<'X'\n{payload_of_all}X\n{command}-save -c"
                ));
                assert_eq!(restore_input(&rules, &saved), None, "{command}\n{saved}");
                assert_eq!(
                    iptables_text::unknown_senders(&saved, 0),
                    (unknown_senders != UnknownSenders::Off).then_some(0),
                    "{saved}"
                );
                let nobody = OtherDaemons::default();
                let (_, words) = iptables_text::removal(&saved, &nobody, None).unwrap();
                assert_eq!(words.len(), 7, "{saved}");
            }
        }
    }
}

/// Rulesets without rules, without a guard, and with guards that differ in their options and peers.
fn nft_states(family: Family) -> [Ruleset; 6] {
    let plain = || rules_of(family, &options());
    let empty = || no_rules(family);
    [
        empty(),
        plain(),
        guarded(empty(), UnknownSenders::Off, &[]),
        guarded(plain(), UnknownSenders::Count, &["192.168.56.102", "fd00:56::102"]),
        guarded(plain(), UnknownSenders::Drop, &["192.168.56.103", "fd00:56::103"]),
        guarded(
            plain(),
            UnknownSenders::Drop,
            &["192.168.56.102", "192.168.56.104", "fd00:56::104"],
        ),
    ]
}

#[test]
fn nft_changes_any_rules_to_any_others() {
    for family in Family::ALL {
        let states = nft_states(family);
        for from in &states {
            let first = script_of(from, None);
            let listing = in_namespace(&first, family);
            for to in &states {
                let change = script_of(to, listing.as_ref());
                let after = in_namespace(&format!("{first}{change}"), family);
                assert!(are_in_place(to, after.as_ref()), "{from:?}\n{to:?}\n{change}\n{after:?}");
                assert!(nftables_text::holds_except_encap(to, after.as_ref()));
                let bare = |rules: &Ruleset| (rules.masquerade.is_some(), rules.forward.is_some());
                assert_eq!(
                    nftables_text::holds_except_encap(to, listing.as_ref()),
                    bare(from) == bare(to),
                    "{from:?}\n{to:?}"
                );
                assert_eq!(
                    after.as_ref().and_then(nftables_text::unknown_senders).is_some(),
                    to.encap.as_ref().is_some_and(|encap| encap.peers.is_some())
                );
            }
        }
    }
}

#[test]
fn nft_script_changes_only_the_set_when_peers_differ() {
    for family in Family::ALL {
        let (layer, name) = nftables_text::table_of(family, 0);
        let [.., old, new] = nft_states(family);
        let change = script_of(&new, in_namespace(&script_of(&old, None), family).as_ref());
        let (gone, fresh) = family.pick(
            ("192.168.56.103", "192.168.56.102, 192.168.56.104"),
            ("fd00:56::103", "fd00:56::104"),
        );
        assert_eq!(
            change,
            format!(
                "delete element {layer} {name} peers {{ {gone} }}\nadd element {layer} {name} peers {{ {fresh} }}\n"
            )
        );
    }
}

/// The transaction for nft removes flannel's rules that iptables-nft wrote, and keeps the rules of
/// other programs.
#[test]
fn nft_removes_the_iptables_set() {
    let ours = restore_input(&guarded(rules(), UnknownSenders::Drop, &[]), EMPTY).unwrap();
    let script = format!(
        "iptables-nft-restore --noflush <<'X'\n{ours}X\niptables-nft -A FORWARD -s 1.2.3.4 -j DROP; iptables-nft -t nat -A POSTROUTING -j FLANNEL-POSTRTG"
    );
    let listings = |removal: &str| -> Vec<serde_json::Value> {
        let list = "for t in nat filter raw; do nft -j -a list table ip $t; done";
        let text = netns(&format!("{script}\nnft -f - <<'X'\n{removal}X\n{list}"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let removal =
        |listings: &[_]| nftables_text::iptables_removal(listings, &OtherDaemons::default());
    let (script, words) = removal(&listings("")).unwrap();
    assert_eq!(words.len(), 3, "{words:?}");
    let after = listings(&script);
    let text = format!("{after:?}");
    assert!(!text.contains("FLANNEL") && text.contains("1.2.3.4"), "{text}");
    assert_eq!(removal(&after), None);
}

/// A dry run of the cleanup finds all rules of Go flannel and flannel-rs in nftables and in both
/// variants of iptables. A real run removes them and keeps all other rules.
#[test]
fn everything_of_ours_is_cleared() {
    let work = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let sh = |script: &str| {
            let output = std::process::Command::new("sh").args(["-ec", script]).output().unwrap();
            assert!(
                output.status.success(),
                "{script}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let ours = restore_input(&guarded(rules(), UnknownSenders::Drop, &[]), "").unwrap();
        sh(&format!(
            "iptables-nft-restore --noflush <<'X'\n{ours}X\niptables-legacy-restore --noflush <<'X'\n{ours}X\n\
             nft -f - <<'X'\n{}X\niptables-nft -A FORWARD -s 1.2.3.4 -j DROP\niptables-legacy -A FORWARD -s 1.2.3.5 -j DROP\nnft add table ip theirs",
            script_of(&rules(), None)
        ));
        let all = || {
            sh("nft -s list ruleset 2>/dev/null; iptables-legacy-save; ip6tables-legacy-save")
                .lines()
                .filter(|line| !line.starts_with('#'))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let before = all();
        let dry = runtime.block_on(clear_except(&OtherDaemons::default(), true));
        assert_eq!(all(), before, "a dry run changes nothing");
        let wet = runtime.block_on(clear_except(&OtherDaemons::default(), false));
        assert_eq!(dry, wet);
        assert!(wet.errors.is_empty(), "{wet:?}");
        assert_eq!(wet.removed.len(), 15, "{wet:?}");
        let after = all().to_lowercase();
        assert!(!after.contains("flannel"), "{after}");
        for theirs in ["1.2.3.4", "1.2.3.5", "table ip theirs"] {
            assert!(after.contains(theirs), "{theirs}: {after}");
        }
        assert_eq!(
            runtime.block_on(clear_except(&OtherDaemons::default(), true)),
            CleanupReport::default()
        );
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
}

/// Several UDP ports, or IP protocol 4, in the output of several distributions' programs.
#[test]
fn other_encapsulations_than_one_port_are_guarded() {
    let rules = |family: Family, encapsulation: Encapsulation| {
        let guard_options = guard_options(UnknownSenders::Count);
        let options = RuleOptions { guard: guard_options, ..options() };
        let wanted = Wanted { encapsulation, ..wanted_of(family, options) };
        Ruleset { encap: guard_of(&wanted, family), ..no_rules(family) }
    };
    let several = Encapsulation::Udp { ports: Dual::Both(51820, 51821), outer: None };
    for (encapsulation, iptables, nft) in [
        (several, "-p udp -m multiport --dports 51820,51821", "udp dport { 51820, 51821 }"),
        (Encapsulation::Ipip, "-p 4", "ip protocol 4"),
    ] {
        let rules = rules(Family::V4, encapsulation);
        let saved = written(&rules, EMPTY);
        assert!(saved.contains(&format!("-A PREROUTING {iptables} -m comment")), "{saved}");
        for name in ["4", "ipencap", "ipv4"] {
            let saved = saved.replace("-p 4 ", &format!("-p {name} "));
            assert_eq!(restore_input(&rules, &saved), None, "{name}");
        }
        let script = script_of(&rules, None);
        assert!(script.contains(&format!("{nft} fib daddr type local")), "{script}");
    }
    let over_v6 = rules(Family::V6, Encapsulation::Ipip);
    assert_eq!(over_v6.encap, None, "it has no packets over IPv6");
    // The guard of another encapsulation replaces this one.
    let saved = written(&rules(Family::V4, Encapsulation::udp(8472)), EMPTY);
    let after = written(&rules(Family::V4, Encapsulation::Ipip), &saved);
    assert!(!after.contains("8472") && after.contains("-p 4"), "{after}");
}

/// The other daemons as the daemon of network 10.5.0.0/16 knows them, beside the one of 10.6.0.0/16.
fn neighbours(unknown: bool) -> OtherDaemons {
    OtherDaemons {
        own: ["10.5.0.0/16".parse().unwrap()].into(),
        served: ["10.6.0.0/16".parse().unwrap()].into(),
        unknown,
        slots: [1].into(),
    }
}

#[test]
fn every_rule_of_go_flannel_belongs_to_its_network() {
    let others = neighbours(false);
    let named = |text: &str| {
        let net = text.trim_start_matches('!');
        (!net.is_empty()).then(|| net.parse().unwrap())
    };
    for (source, destination) in [
        ("10.5.0.0/16", ""),
        ("", "10.5.0.0/16"),
        ("10.5.7.0/24", "10.5.0.0/16"),
        ("10.5.0.0/16", "10.5.7.0/24"),
        ("!10.5.0.0/16", "10.5.7.0/24"),
        // Go flannel in nftables.
        ("!10.5.7.0/24", "10.5.0.0/16"),
        ("10.5.0.0/16", "!224.0.0.0/4"),
        ("!10.5.0.0/16", "10.5.0.0/16"),
        // An exception, also for the network of another daemon.
        ("10.5.0.0/16", "172.16.0.0/12"),
        ("10.5.0.0/16", "10.0.0.0/8"),
        ("10.5.0.0/16", "10.6.0.0/16"),
    ] {
        let rule = (named(source), named(destination));
        assert!(others.is_own(rule) && !others.is_foreign(rule), "{source} {destination}");
        let [theirs, unknown] = ["10.6.", "10.7."].map(|net| {
            let other = |text: &str| named(&text.replace("10.6.", "10.4.").replace("10.5.", net));
            (other(source), other(destination))
        });
        assert!(others.keeps(theirs) && !others.is_own(theirs), "{source} {destination}");
        assert!(!others.keeps(unknown), "{source} {destination}");
        assert!(neighbours(true).keeps(unknown), "{source} {destination}");
    }
    let exception = (named("10.6.0.0/16"), named("10.5.0.0/16"));
    assert!(others.keeps(exception) && !others.is_own(exception));
    assert!(!others.is_own((None, None)) && !others.is_foreign((None, None)));
}

/// As before the slots, and after a return to a version without them.
#[test]
fn rules_of_another_network_stay_in_chains_that_daemons_share() {
    let rules = Ruleset { others: neighbours(true), ..rules() };
    let theirs = "-A FLANNEL-POSTRTG -s 10.6.0.0/16 ! -d 224.0.0.0/4 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully\n";
    let own = "-A FLANNEL-POSTRTG -s 10.5.1.0/24 ";
    // Before, between and behind this daemon's rules.
    for place in ["-A FLANNEL-POSTRTG -m mark ", own, "COMMIT\n*filter"] {
        let saved = written(&rules, EMPTY).replacen(place, &format!("{theirs}{place}"), 1);
        assert_eq!(restore_input(&rules, &saved), None, "{place}");
        let damaged = saved.replace(own, "-A FLANNEL-POSTRTG -s 10.5.2.0/24 ");
        let mended = written(&rules, &damaged);
        assert!(mended.contains(theirs) && restore_input(&rules, &mended).is_none(), "{mended}");
        let unwanted = Ruleset { masquerade: None, ..rules.clone() };
        assert!(written(&unwanted, &saved).contains(theirs));
        // The other daemon's network.
        assert_eq!(cleared(&saved, &neighbours(false), Some(0)), saved);
        let alone = OtherDaemons { served: BTreeSet::new(), ..neighbours(false) };
        assert!(!cleared(&saved, &alone, Some(0)).contains(theirs));
    }
}

/// Runs the script in an empty network namespace.
pub(crate) fn netns(script: &str) -> String {
    let output =
        std::process::Command::new("unshare").args(["-n", "sh", "-ec", script]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Applies an nft script in an empty network namespace. The result is the listing of flannel's
/// table.
fn in_namespace(script: &str, family: Family) -> Option<serde_json::Value> {
    let (layer, name) = nftables_text::table_of(family, 0);
    let listing = netns(&format!(
        "nft -f - <<'X'\n{script}X\nnft -j list table {layer} {name} 2>/dev/null || true"
    ));
    serde_json::from_str(&listing).ok()
}

/// Runs the test in network and mount namespaces of its own.
fn isolated(test: impl AsyncFnOnce() + Send) {
    let run = || {
        use nix::sched::CloneFlags;
        nix::sched::unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        sh("mount --make-rprivate /");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
}

/// Runs the script in the namespaces of this thread.
fn sh(script: &str) -> String {
    let output = std::process::Command::new("sh").args(["-ec", script]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A rule of nft in the table of iptables, which iptables-save then does not list.
const NATIVE: &str = "nft add table ip filter; nft 'add chain ip filter FORWARD { type filter hook forward priority 0; }'; \
                      nft add rule ip filter FORWARD ct state established,related accept";

fn jumps() -> usize {
    sh("nft list ruleset").matches("jump FLANNEL-FWD").count()
}

#[test]
fn table_that_iptables_cannot_list_gets_no_rules_and_is_named() {
    isolated(async || {
        sh(NATIVE);
        let mut applier = Applier::new(false, Family::V4);
        let mut notes = Vec::new();
        for _ in 0..3 {
            applier.apply(&rules()).await.unwrap();
            notes.extend(applier.notes());
        }
        assert_eq!(jumps(), 0);
        let [Note::Warn(text)] = notes.as_slice() else {
            panic!("{notes:?}");
        };
        assert!(text.contains("table filter, chain FORWARD"), "{text}");
        assert!(sh("nft list table ip flannel-ipv4").contains("masquerade"));
        // The remedy: the rules of nft move away.
        sh("nft flush chain ip filter FORWARD");
        applier.apply(&rules()).await.unwrap();
        assert_eq!((jumps(), applier.variant()), (1, Some(Variant::Nft)));
        assert!(!sh("nft list tables").contains("flannel-ipv4"));
    });
}

/// Programs of iptables that fail silently, with the number of jumps that may be in the kernel after three passes.
#[test]
fn write_without_visible_effect_is_an_error_and_is_not_repeated() {
    let right = "iptables-nft \"$@\"";
    for (list, restore, jumped) in [
        (right, "cat >/dev/null", 0),
        ("true", "iptables-nft-restore \"$@\"", 1),
        ("iptables-nft \"$@\" | grep -v FLANNEL || true", "iptables-nft-restore \"$@\"", 1),
    ] {
        isolated(async || {
            let folder = sh("mktemp -d");
            let program = |name: &str, script: &str| {
                let path = format!("{}/{name}", folder.trim());
                std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
                sh(&format!("chmod +x {path}"));
                path
            };
            let command = program("iptables", list);
            let mut applier = Applier::new(false, Family::V4);
            applier.pinned = Some(Iptables { family: Family::V4, command, variant: Variant::Nft });
            program("iptables-restore", restore);
            for _ in 0..3 {
                let error = applier.apply_iptables(&rules()).await.unwrap_err();
                assert!(
                    ["rules-without-effect", "program-output-unusable"]
                        .contains(&types::Coded::code(&error)),
                    "{error:?}"
                );
            }
            assert_eq!(jumps(), jumped, "{list} {restore}");
            // The programs work again, and the listing shows it.
            program("iptables", right);
            program("iptables-restore", "iptables-nft-restore \"$@\"");
            sh("iptables-nft -N ANOTHER");
            applier.apply_iptables(&rules()).await.unwrap();
            assert_eq!(jumps(), 1);
            sh(&format!("rm -r {folder}"));
        });
    }
}

/// Another program removes a chain while flanneld lists the rules.
#[test]
fn listing_without_a_chain_that_goes_is_complete() {
    isolated(async || {
        sh(
            "iptables-nft -t nat -N FLANNEL-POSTRTG; iptables-nft -N FLANNEL-FWD; iptables-nft -N OTHER",
        );
        let folder = sh("mktemp -d").trim().to_owned();
        let command = format!("{folder}/iptables");
        let script = "nft flush ruleset; exec iptables-nft \"$@\"";
        std::fs::write(&command, format!("#!/bin/sh\n{script}\n")).unwrap();
        sh(&format!("chmod +x {command}"));
        let programs = Iptables { family: Family::V4, command, variant: Variant::Nft };
        assert_eq!(programs.list(None).await.unwrap(), "");
        sh(&format!("rm -r {folder}"));
    });
}

/// The listing has the same rules and counters as that of iptables-save, and the names of the other chains.
#[test]
fn listing_of_own_chains_agrees_with_iptables_save() {
    isolated(async || {
        let ours = restore_input(&guarded(rules(), UnknownSenders::Count, &["192.168.56.102"]), "")
            .unwrap();
        let second = Ruleset { slot: 1, ..rules() };
        let second = restore_input(&second, "").unwrap();
        // Daemons without slots remove rules with this comment from the built-in chains.
        assert!(!second.contains("flanneld masq") && !second.contains("flanneld forward"));
        sh(&format!(
            "iptables-nft-restore --noflush <<'X'\n{ours}{second}X\niptables-nft -A FORWARD -s 1.2.3.4 -m comment --comment 'a -c 1 2' -j DROP\niptables-nft -N OTHER\niptables-nft -A OTHER -j DROP"
        ));
        let (programs, _) = Iptables::installed(Family::V4).await.unwrap().remove(0);
        let lines = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let saved = lines(&sh("iptables-nft-save -c"));
        let missing = |listed: &str| {
            saved
                .difference(&lines(listed))
                .filter(|line| line.contains("-A "))
                .cloned()
                .collect::<Vec<_>>()
        };
        let all = programs.list(None).await.unwrap();
        assert_eq!(missing(&all), ["[0:0] -A OTHER -j DROP"], "{all}");
        assert!(all.contains(":OTHER - [0:0]\n"), "{all}");
        let own = programs.list(Some(0)).await.unwrap();
        let others = missing(&own);
        assert!(
            others.iter().all(|line| line.contains("-A FLANNEL-") && line.contains("-1 ")
                || line.contains("OTHER")),
            "{others:?}"
        );
        assert_eq!(others.len(), 1 + 6 + 2, "{others:?}");
    });
}

/// Where programs cannot look, cleanup says so, if the kernel contains rules of flannel. One program's failure does not stop the others.
#[test]
fn cleanup_reports_what_no_program_could_look_at() {
    let (both, nothing) = (["nft", "iptables"], [""; 0]);
    let stub = |script: &str| format!("#!/bin/sh\n{script}\n");
    for (what, broken, stub_script, is_clean) in [
        ("without programs", both.as_slice(), None, false),
        ("programs that crash", &both, Some("kill -SEGV $$"), false),
        ("programs that do nothing", &both, Some("true"), false),
        ("programs that print garbage", &both, Some("echo x"), false),
        ("iptables that crashes", &["iptables"], Some("exit 1"), true),
        ("iptables that does nothing", &["iptables"], Some("true"), true),
        ("no nft", &["nft"], None, true),
        ("all programs", &nothing, None, true),
    ] {
        for written in ["iptables", "nft", ""] {
            isolated(async || {
                let ours = restore_input(&rules(), "").unwrap();
                let script_of_nft = script_of(&rules(), None);
                match written {
                    "iptables" => sh(&format!("iptables-nft-restore --noflush <<'X'\n{ours}X\n")),
                    "nft" => sh(&format!("nft -f - <<'X'\n{script_of_nft}X\n")),
                    _ => String::new(),
                };
                let stays = what == "no nft" && written == "nft";
                sh(
                    "mkdir -p /run/sbin-copy; mount -t tmpfs none /run/sbin-copy; cp -a /usr/sbin/*tables* /usr/sbin/nft /run/sbin-copy; \
                    mount --bind /run/sbin-copy /usr/sbin",
                );
                for name in broken {
                    let legacy =
                        "iptables-legacy-save ip6tables-legacy-save iptables-legacy-restore";
                    let names = match *name {
                        "nft" => "nft".to_owned(),
                        _ => format!("$(ls | grep tables) {legacy}"),
                    };
                    let replace = stub_script.map_or("rm -f $name".to_owned(), |script| {
                        format!("rm -f $name; printf '{}' >$name; chmod +x $name", stub(script))
                    });
                    sh(&format!("cd /usr/sbin; for name in {names}; do {replace}; done"));
                }
                let cleared = clear_except(&OtherDaemons::default(), false).await;
                let is_empty = cleared.errors.is_empty();
                assert_eq!(
                    is_empty,
                    written.is_empty() || is_clean && !stays,
                    "{what}, {written}: {cleared:?}"
                );
                sh("umount /usr/sbin");
                let left = sh("nft list ruleset").to_lowercase();
                assert_eq!(left.contains("flannel"), !is_empty, "{what}: {left}");
            });
        }
    }
}

/// Versions of iptables-save and nft print the same rule in other words.
#[test]
fn rules_in_other_words_are_recognised() {
    let guarded = guarded(rules(), UnknownSenders::Drop, &["192.168.56.102"]);
    let saved = written(&guarded, EMPTY);
    let comment = "-m comment --comment \"flanneld masq\"";
    for (ours, theirs) in [
        ("--mark 0x4000/0x4000", "--mark 16384/16384"),
        ("10.5.0.0/16", "10.5.0.0/255.255.0.0"),
        ("192.168.56.102/32", "192.168.56.102"),
        ("-s 10.5.1.0/24 -d 10.5.0.0/16", "-d 10.5.0.0/16 -s 10.5.1.0/24"),
        ("! -s 10.5.0.0/16 -d 10.5.1.0/24", "-d 10.5.1.0/24 ! -s 10.5.0.0/16"),
        ("\"flanneld masq\"", "flanneld masq"),
        ("-p udp -m udp --dport", "-p 17 -m udp --dport"),
        (
            &format!("-m mark --mark 0x4000/0x4000 {comment}"),
            &format!("{comment} -m mark --mark 0x4000/0x4000"),
        ),
    ] {
        assert!(saved.contains(ours), "{ours}");
        let other = saved.replace(ours, theirs);
        assert_eq!(restore_input(&guarded, &other), None, "{theirs}");
    }
    for changed in [
        saved.replace("0x4000/0x4000", "0x4000/0x4001"),
        saved.replace("! -s 10.5.0.0/16", "-s 10.5.0.0/16"),
        saved.replace("-d 10.5.0.0/16", "-i eth0 -d 10.5.0.0/16"),
        saved.replace("10.5.1.0/24", "10.5.1.0/25"),
    ] {
        assert!(restore_input(&guarded, &changed).is_some(), "{changed}");
    }
    let listing = in_namespace(&script_of(&guarded, None), Family::V4).unwrap();
    let text = listing.to_string();
    for (ours, theirs) in [
        ("\"prio\":-300", "\"prio\":\"raw\""),
        ("\"prio\":100", "\"prio\":\"srcnat\""),
        ("\"192.168.56.102\"", "{\"elem\":{\"val\":\"192.168.56.102\"}}"),
        ("\"right\":16384", "\"right\":\"0x00004000\""),
    ] {
        assert!(text.contains(ours), "{ours} {text}");
        let other = serde_json::from_str(&text.replace(ours, theirs)).unwrap();
        assert!(are_in_place(&guarded, Some(&other)), "{theirs}");
    }
}
