use super::iptables_text::payload;
use super::nftables_text;
use super::rules::{Choices, Rule, Ruleset, ruleset};
use super::*;
use proptest::prelude::*;
use subnet_lease::Dual;

fn choices() -> Choices {
    Choices { masquerade: true, fully_random: true, masquerade_inbound: true, non_masquerade: Vec::new(), forward: true, forward_insert: false }
}

/// The tables of one family as `iptables -S` prints them, in the form of `iptables-save`.
fn saved(section: &str) -> String {
    let mut out = String::new();
    for (table, text) in [("nat", "-t nat -S"), ("filter", "-t filter -S")] {
        out.push_str(&format!("*{table}\n"));
        let lines = section.split("# ").find(|part| part.lines().next().is_some_and(|line| line.ends_with(text))).unwrap();
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

/// A small iptables-restore --noflush on the text of iptables-save.
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
            at = tables.iter().position(|(table, ..)| table == name).unwrap();
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
            let found = rules.iter().position(|rule| *rule == wanted).unwrap_or_else(|| panic!("-D of what is not there: {line}"));
            rules.remove(found);
        } else if line.starts_with("-A ") {
            rules.push(line.to_owned());
        } else if let Some(rest) = line.strip_prefix("-I ") {
            let rule = format!("-A {rest}");
            let first = rules.iter().position(|other| chain_of(other) == chain_of(&rule)).unwrap_or(rules.len());
            rules.insert(first, rule);
        } else if let Some(name) = line.strip_prefix("-F ") {
            rules.retain(|rule| chain_of(rule) != name);
        } else if let Some(name) = line.strip_prefix("-X ") {
            assert!(!rules.iter().any(|rule| rule.ends_with(&format!("-j {name}"))), "-X of a chain in use");
            chains.retain(|chain| !chain[1..].starts_with(&format!("{name} ")));
        } else {
            assert_eq!(line, "COMMIT");
        }
    }
    tables
        .iter()
        .map(|(table, chains, rules)| {
            format!("*{table}\n{}\n{}COMMIT\n", chains.join("\n"), rules.iter().map(|rule| format!("{rule}\n")).collect::<String>())
        })
        .collect()
}

const EMPTY: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";

/// The captures of Go flannel's rules: ours are the same text, and where they stand nothing is written.
#[test]
fn golden_rules() {
    for case in ["masq-plain", "masq-dual", "masq-noforward", "vxlan-dual"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../flanneld/tests/golden").join(case);
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        let (env, flags, capture) = (read("subnet.env"), read("flags"), read("iptables.txt"));
        let value = |key: &str| env.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let v4 = |key: &str| value(key).map(|net| net.parse::<ipnet::Ipv4Net>().unwrap().trunc());
        let v6 = |key: &str| value(key).map(|net| net.parse::<ipnet::Ipv6Net>().unwrap().trunc());
        let choices = Choices {
            masquerade: flags.contains("--ip-masq"),
            fully_random: !flags.contains("--ip-masq-fully-random-disable"),
            forward: !flags.contains("--iptables-forward-rules=false"),
            ..choices()
        };
        let wanted = Wanted {
            networks: Dual::from_options(v4("FLANNEL_NETWORK"), v6("FLANNEL_IPV6_NETWORK")).unwrap(),
            own: Dual::from_options(v4("FLANNEL_SUBNET"), v6("FLANNEL_IPV6_SUBNET")).unwrap(),
            choices,
            nftables: false,
            resync: Duration::from_secs(60),
        };
        let (v4, v6) = capture.split_once("# ip6tables -t nat").map(|(v4, v6)| (v4.to_owned(), format!("# ip6tables -t nat{v6}"))).unwrap();
        for rules in wanted.rulesets() {
            let golden = saved(if rules.ipv6 { &v6 } else { &v4 });
            assert_eq!(payload(&rules, &golden), None, "{case}");
            let ours = restored(EMPTY, &payload(&rules, EMPTY).unwrap());
            let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
            assert_eq!(sorted(&ours), sorted(&golden), "{case}");
        }
    }
}

fn rules() -> Ruleset {
    ruleset("10.5.0.0/16".parse().unwrap(), "10.5.1.0/24".parse().unwrap(), &choices())
}

#[test]
fn non_masquerade_and_inbound() {
    let chosen = Choices { non_masquerade: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()], masquerade_inbound: false, ..choices() };
    let text = payload(&ruleset("10.5.0.0/16".parse().unwrap(), "10.5.1.0/24".parse().unwrap(), &chosen), EMPTY).unwrap();
    assert!(text.contains("-A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.0.0.0/8 -m comment --comment \"flanneld masq\" -j RETURN\n"), "{text}");
    assert!(!text.contains("fd00") && !text.contains("! -s 10.5.0.0/16 -d 10.5.0.0/16"), "{text}");
}

#[test]
fn insertion_moves_the_jump_to_the_front() {
    let first = Ruleset { forward_insert: true, ..rules() };
    let there = restored(EMPTY, &payload(&rules(), EMPTY).unwrap());
    let with_reject = there.replace("-A FORWARD -m", "-A FORWARD -j REJECT\n-A FORWARD -m");
    let after = restored(&with_reject, &payload(&first, &with_reject).unwrap());
    let forward: Vec<&str> = after.lines().filter(|line| line.starts_with("-A FORWARD")).collect();
    assert!(forward[0].ends_with("FLANNEL-FWD") && forward.len() == 2, "{forward:?}");
    assert_eq!(payload(&first, &after), None);
    // Appended, it may stand anywhere.
    assert_eq!(payload(&rules(), &with_reject), None);
}

/// Go flannel from v0.17 to v0.19 wrote its rules straight into the built-in chains.
#[test]
fn rules_of_old_versions_are_removed() {
    let old = EMPTY.replace(
        ":POSTROUTING ACCEPT [0:0]\n",
        ":POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment \"flanneld masq\" -j RETURN\n-A POSTROUTING -s 1.2.3.0/24 -j MASQUERADE\n",
    );
    let after = restored(&old, &payload(&rules(), &old).unwrap());
    assert!(!after.contains("-A POSTROUTING -s 10.5.0.0/16") && after.contains("-A POSTROUTING -s 1.2.3.0/24 -j MASQUERADE"));
    let nothing = Ruleset::nothing(false);
    let gone = restored(&after, &payload(&nothing, &after).unwrap());
    assert!(!gone.contains("FLANNEL") && gone.contains("1.2.3.0/24"), "{gone}");
    assert_eq!(payload(&nothing, &gone), None);
}

fn damage() -> impl Strategy<Value = Vec<(usize, u8)>> {
    proptest::collection::vec((any::<usize>(), 0u8..4), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Whatever was damaged, one restore brings the wanted rules and leaves the foreign ones; a second look writes nothing.
    #[test]
    fn one_restore_heals(damage in damage(), masquerade: bool, forward: bool, insert: bool) {
        let foreign = ["-A POSTROUTING -s 1.2.3.0/24 -j MASQUERADE", "-A FORWARD -i docker0 -j DROP"];
        let base = EMPTY.replace(":POSTROUTING ACCEPT [0:0]\n", &format!(":POSTROUTING ACCEPT [0:0]\n{}\n", foreign[0])).replace(":FORWARD ACCEPT [0:0]\n", &format!(":FORWARD ACCEPT [0:0]\n{}\n", foreign[1]));
        let mut lines: Vec<String> = restored(&base, &payload(&rules(), &base).unwrap()).lines().map(str::to_owned).collect();
        for (at, how) in damage {
            let ours: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].starts_with("-A") && lines[*at].contains("flanneld")).collect();
            if ours.is_empty() { break; }
            let at = ours[at % ours.len()];
            match how {
                0 => { lines.remove(at); }
                1 => { let line = lines[at].clone(); lines.insert(at, line); }
                2 => { if at + 1 < lines.len() && lines[at + 1].starts_with("-A") { lines.swap(at, at + 1); } }
                _ => { lines[at] = lines[at].replace("10.5.0.0/16", "10.6.0.0/16"); }
            }
        }
        let saved = format!("{}\n", lines.join("\n"));
        let wanted = ruleset("10.5.0.0/16".parse().unwrap(), "10.5.1.0/24".parse().unwrap(), &Choices { masquerade, forward, forward_insert: insert, ..choices() });
        let after = match payload(&wanted, &saved) { Some(payload) => restored(&saved, &payload), None => saved };
        prop_assert_eq!(payload(&wanted, &after), None);
        for rule in foreign { prop_assert!(after.contains(rule)); }
        prop_assert_eq!(after.contains("FLANNEL-POSTRTG"), masquerade);
        prop_assert_eq!(after.contains("FLANNEL-FWD"), forward);
    }
}

/// What the real nft prints of our script is recognised, and every change of it is not.
#[test]
fn nft_tells_our_rules_back() {
    for (network, own) in [("10.5.0.0/16", "10.5.1.0/24"), ("fd00:5::/48", "fd00:5:0:1::/64")] {
        for (masquerade, forward, fully_random) in [(true, true, true), (true, false, false), (false, true, true), (false, false, false)] {
            let chosen = Choices {
                masquerade,
                forward,
                fully_random,
                non_masquerade: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
                ..choices()
            };
            let rules = ruleset(network.parse().unwrap(), own.parse().unwrap(), &chosen);
            let listing = in_namespace(&nftables_text::script(&rules), rules.ipv6);
            assert!(nftables_text::holds(&rules, listing.as_ref()), "{rules:?}\n{listing:?}");
            if let Some(first) = rules.masquerade.as_ref().and_then(|rules| rules.first()) {
                let mut other = rules.clone();
                other.masquerade = Some(vec![Rule { ..first.clone() }]);
                assert!(!nftables_text::holds(&other, listing.as_ref()));
            }
        }
    }
}

/// Applies a script to an empty network namespace and lists the table.
fn in_namespace(script: &str, ipv6: bool) -> Option<serde_json::Value> {
    let (family, name) = nftables_text::table(ipv6);
    let mut child = std::process::Command::new("unshare")
        .args(["-n", "sh", "-c", &format!("nft -f - && {{ nft -j list table {family} {name} 2>/dev/null || true; }}")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("needs unshare and nft");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "nft refuses:\n{script}");
    serde_json::from_slice(&output.stdout).ok()
}
