//! Several daemons on one host: each has its own chains or table, also after they had shared those of slot 0, as
//! daemons without slots do.

use crate::origins::sh;
use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;
use std::time::Duration;
use traffic_rules::rules::{GuardOptions, OtherDaemons, RuleOptions, UnknownSenders};
use traffic_rules::variant::Variant;
use traffic_rules::{ActiveRules, Applier, Wanted, clear_except, clear_inactive};
use types::{Dual, Encapsulation, Family};

const TOOLS: [ActiveRules; 3] = [
    ActiveRules::Iptables(Variant::Nft),
    ActiveRules::Iptables(Variant::Legacy),
    ActiveRules::Nftables,
];

/// Lists the rules without counters, in a form that both variants of iptables and nft have in common.
const LIST: &str = "
iptables-legacy-save | grep -v '^#' | sed 's/\\[.*\\]//'
nft -s list ruleset
";

/// The daemon of network 10.NUMBER.0.0/16.
struct Daemon {
    number: u8,
    slot: u16,
    tool: ActiveRules,
    applier: Applier,
    others: OtherDaemons,
}

impl Daemon {
    /// `other` is the number of the other network.
    fn new(tool: ActiveRules, number: u8, slot: u16, other: u8) -> Self {
        let applier = Applier::new(tool == ActiveRules::Nftables, Family::V4);
        let net = |number: u8| format!("10.{number}.0.0/16").parse().unwrap();
        let others = OtherDaemons {
            own: [net(number)].into(),
            served: [net(other)].into(),
            unknown: true,
            slots: BTreeSet::new(),
        };
        Self { number, slot, tool, applier, others }
    }

    fn knows_slots<const N: usize>(&mut self, slots: [u16; N]) {
        self.others.slots = slots.into();
    }

    fn wanted(&self) -> Wanted {
        let number = self.number;
        Wanted {
            networks: Dual::V4(format!("10.{number}.0.0/16").parse().unwrap()),
            own: Dual::V4(format!("10.{number}.7.0/24").parse().unwrap()),
            options: RuleOptions {
                masquerade: true,
                fully_random: true,
                masquerade_inbound: true,
                // An exception for all networks, and one for the other network.
                non_masquerade: vec![
                    "10.0.0.0/8".parse().unwrap(),
                    format!("10.{}.0.0/16", 11 - number).parse().unwrap(),
                ],
                forward: true,
                forward_insert: false,
                guard: GuardOptions {
                    unknown_senders: UnknownSenders::Count,
                    ..GuardOptions::default()
                },
            },
            nftables: self.tool == ActiveRules::Nftables,
            resync: Duration::from_secs(5),
            encapsulation: Encapsulation::udp(8472),
            hosts: ["192.168.56.101".parse().unwrap()].into(),
            peers: ["192.168.56.102".parse().unwrap()].into(),
            slot: self.slot,
            others: self.others.clone(),
        }
    }

    /// True if the pass wrote.
    async fn pass(&mut self) -> bool {
        let rules = self.wanted().rulesets().remove(0);
        let wrote = self.applier.apply(&rules).await.unwrap().wrote;
        assert!(!self.applier.apply(&rules).await.unwrap().wrote, "a second pass writes");
        wrote
    }

    async fn remove_unused(&self) -> Vec<String> {
        let cleared =
            clear_inactive([self.tool, ActiveRules::Nothing], self.slot, &self.others).await;
        assert_eq!(cleared.errors, Vec::<String>::new());
        cleared.removed
    }
}

/// iptables prefers the variant with rules of flannel.
fn choose(tool: ActiveRules) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    if tool == ActiveRules::Iptables(Variant::Legacy) {
        sh("iptables-legacy -t nat -N KUBE-X; iptables-legacy -t nat -A KUBE-X -j RETURN");
    }
}

/// The rules that name a network, without the names of their chains and tables.
fn rules_of(number: u8) -> Vec<String> {
    let is = |line: &&str| line.contains(&format!(" 10.{number}.7.0/24"));
    let mut rules: Vec<String> = sh(LIST)
        .lines()
        .filter(is)
        .map(|line| line.replace("-POSTRTG-1", "-POSTRTG").replace("flanneld 1", "flanneld"))
        .collect();
    rules.sort();
    rules
}

/// The chains and tables of a slot.
fn has_slot(slot: u16) -> bool {
    let listing = sh(LIST);
    let suffix = if slot == 0 { String::new() } else { format!("-{slot}") };
    let names = ["FLANNEL-POSTRTG", "FLANNEL-FWD", "FLANNEL-ENCAP", "flannel-ipv4"];
    let is = |word: &str| names.iter().any(|name| word == format!("{name}{suffix}"));
    listing.split([' ', '\n', ':', '\t', '"']).any(is)
}

/// The form of daemons without slots: the rules of both networks are in the chains or the table of slot 0.
async fn write_shared_form(tool: ActiveRules) {
    let mut first = Daemon::new(tool, 5, 0, 6);
    first.pass().await;
    append_to_shared_form(tool, 6);
}

/// What a daemon without a slot writes beside the rules of another one. Its guard has number 1.
fn append_to_shared_form(tool: ActiveRules, number: u8) {
    let (net, own) = (format!("10.{number}.0.0/16"), format!("10.{number}.7.0/24"));
    if tool == ActiveRules::Nftables {
        let masquerade = [
            format!("ip saddr {own} ip daddr {net} return"),
            format!("ip saddr {net} ip daddr {own} return"),
            format!("ip saddr != {net} ip daddr {own} return"),
            format!("ip saddr {net} ip daddr 10.0.0.0/8 return"),
            format!("ip saddr {net} ip daddr 10.{}.0.0/16 return", 11 - number),
            format!("ip saddr {net} ip daddr != 224.0.0.0/4 masquerade fully-random"),
            format!("ip saddr != {net} ip daddr {net} masquerade fully-random"),
        ];
        let forward = [format!("ip saddr {net} accept"), format!("ip daddr {net} accept")];
        let rules = |chain: &str, rules: &[String]| {
            rules
                .iter()
                .map(|rule| format!("add rule ip flannel-ipv4 {chain} {rule}\n"))
                .collect::<String>()
        };
        let guard = "add set ip flannel-ipv4 peers-1 { type ipv4_addr; }
            add counter ip flannel-ipv4 strangers-1
            add chain ip flannel-ipv4 encap-in-1 { type filter hook prerouting priority -300; policy accept; }
            add rule ip flannel-ipv4 encap-in-1 udp dport 8472 fib daddr type local ip saddr != @peers-1 counter name strangers-1\n";
        let script = rules("postrtg", &masquerade) + &rules("forward", &forward) + guard;
        sh(&format!("nft -f - <<'X'\n{script}X\n"));
        return;
    }
    let variant = if tool == TOOLS[0] { "nft" } else { "legacy" };
    let masq = "-m comment --comment \"flanneld masq\" -j";
    let forward = "-m comment --comment \"flanneld forward\" -j ACCEPT";
    sh(&format!(
        "iptables-{variant}-restore --noflush <<'X'
*nat
-A FLANNEL-POSTRTG -s {own} -d {net} {masq} RETURN
-A FLANNEL-POSTRTG -s {net} -d {own} {masq} RETURN
-A FLANNEL-POSTRTG ! -s {net} -d {own} {masq} RETURN
-A FLANNEL-POSTRTG -s {net} -d 10.0.0.0/8 {masq} RETURN
-A FLANNEL-POSTRTG -s {net} -d 10.{other}.0.0/16 {masq} RETURN
-A FLANNEL-POSTRTG -s {net} ! -d 224.0.0.0/4 {masq} MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s {net} -d {net} {masq} MASQUERADE --random-fully
COMMIT
*filter
-A FLANNEL-FWD -s {net} {forward}
-A FLANNEL-FWD -d {net} {forward}
COMMIT
X
",
        other = 11 - number
    ));
}

#[tokio::test(flavor = "current_thread")]
async fn daemons_of_two_slots_never_write_because_of_each_other() {
    for tool in TOOLS {
        choose(tool);
        let (mut first, mut second) = (Daemon::new(tool, 5, 0, 6), Daemon::new(tool, 6, 1, 5));
        first.knows_slots([1]);
        second.knows_slots([0]);
        assert!(first.pass().await && second.pass().await);
        let both = sh(LIST);
        for daemon in [&mut first, &mut second] {
            assert!(!daemon.pass().await, "{tool:?}");
            assert_eq!(daemon.remove_unused().await, Vec::<String>::new(), "{tool:?}");
            daemon.others.unknown = false;
            assert_eq!(daemon.remove_unused().await, Vec::<String>::new(), "{tool:?}");
        }
        assert_eq!(sh(LIST), both, "{tool:?}");
        // Cleanup for the first network while the second one's daemon runs.
        let others = OtherDaemons { unknown: false, ..first.others.clone() };
        let cleared = clear_except(&others, false).await;
        assert_eq!(cleared.errors, Vec::<String>::new(), "{tool:?}");
        assert!(!has_slot(0) && has_slot(1), "{tool:?} {}", sh(LIST));
        assert!(!second.pass().await, "{tool:?}");
        // Cleanup without daemons.
        assert!(first.pass().await, "{tool:?}");
        let cleared = clear_except(&OtherDaemons::default(), false).await;
        assert_eq!(cleared.errors, Vec::<String>::new(), "{tool:?}");
        assert!(!sh(LIST).to_lowercase().contains("flannel"), "{tool:?} {}", sh(LIST));
    }
}

/// In both orders of the upgrade, no daemon writes into the chains while another one without a slot uses them, and no
/// rule is missing in between.
#[tokio::test(flavor = "current_thread")]
async fn shared_chains_are_taken_apart_when_the_second_daemon_has_a_slot() {
    for tool in TOOLS {
        for (one, two) in [(5, 6), (6, 5)] {
            choose(tool);
            write_shared_form(tool).await;
            let right = [rules_of(5), rules_of(6)];
            assert_eq!(right.each_ref().map(Vec::len), [3, 3], "{tool:?} {}", sh(LIST));
            let mut first = Daemon::new(tool, one, 0, two);
            // The number of the guard that network 6 has without a slot.
            first.knows_slots([1]);
            assert!(!first.pass().await, "{tool:?} {}", sh(LIST));
            first.others.unknown = false;
            first.remove_unused().await;
            assert_eq!([rules_of(5), rules_of(6)], right, "{tool:?} {}", sh(LIST));
            // Damage to the daemon's own rules does not harm the others.
            match tool {
                ActiveRules::Nftables => sh("nft insert rule ip flannel-ipv4 postrtg drop"),
                _ if tool == TOOLS[0] => sh("iptables-nft -t nat -D FLANNEL-POSTRTG 1"),
                _ => sh("iptables-legacy -t nat -D FLANNEL-POSTRTG 1"),
            };
            assert!(first.pass().await, "{tool:?}");
            assert_eq!([rules_of(5), rules_of(6)], right, "{tool:?} {}", sh(LIST));

            let mut second = Daemon::new(tool, two, 1, one);
            second.knows_slots([0]);
            assert!(second.pass().await, "{tool:?}");
            assert!(!second.remove_unused().await.is_empty(), "{tool:?}");
            assert!(!first.pass().await && !second.pass().await, "{tool:?}");
            assert_eq!([rules_of(5), rules_of(6)], right, "{tool:?} {}", sh(LIST));
            assert!(!sh(LIST).contains("encap-in-1"), "{tool:?} {}", sh(LIST));
            // Nothing of the second network is left in the first one's chains.
            let others = OtherDaemons { unknown: false, ..second.others.clone() };
            assert!(clear_except(&others, false).await.errors.is_empty(), "{tool:?}");
            assert!(!has_slot(1) && !first.pass().await, "{tool:?} {}", sh(LIST));
        }
    }
}

/// After a return to a version without slots, the daemon with a slot tolerates the rules in its chains.
#[tokio::test(flavor = "current_thread")]
async fn daemon_without_a_slot_may_come_back() {
    for tool in TOOLS {
        choose(tool);
        let (mut first, mut second) = (Daemon::new(tool, 5, 0, 6), Daemon::new(tool, 6, 1, 5));
        first.knows_slots([1]);
        second.knows_slots([0]);
        assert!(first.pass().await && second.pass().await);
        append_to_shared_form(tool, 6);
        let right = rules_of(6);
        assert!(!first.pass().await, "{tool:?} {}", sh(LIST));
        first.others.unknown = false;
        first.remove_unused().await;
        assert!(!first.pass().await, "{tool:?}");
        assert_eq!(rules_of(6), right, "{tool:?} {}", sh(LIST));
    }
}

/// An ended daemon's guard is removed at once, and its other rules once it is known that it does not start again.
#[tokio::test(flavor = "current_thread")]
async fn slot_of_an_ended_daemon_is_removed() {
    for tool in TOOLS {
        choose(tool);
        let (mut first, mut second) = (Daemon::new(tool, 5, 0, 6), Daemon::new(tool, 6, 1, 5));
        assert!(first.pass().await && second.pass().await);
        let right = rules_of(6);
        let served = std::mem::take(&mut first.others.served);
        first.remove_unused().await;
        assert_eq!(rules_of(6), right, "{tool:?}: its daemon may be restarting");
        let guards =
            if tool == ActiveRules::Nftables { "chain encap-in" } else { "FLANNEL-ENCAP-1" };
        let left = usize::from(tool == ActiveRules::Nftables);
        assert_eq!(sh(LIST).matches(guards).count(), left, "{tool:?} {}", sh(LIST));
        first.others = OtherDaemons { served, unknown: false, ..first.others };
        first.remove_unused().await;
        assert_eq!(rules_of(6), right, "{tool:?}: a daemon has served the network");
        first.others.served.clear();
        first.remove_unused().await;
        assert!(!has_slot(1) && rules_of(6).is_empty(), "{tool:?} {}", sh(LIST));
        assert!(!first.pass().await, "{tool:?}");
    }
}

/// The daemon of slot 0 has ended for good. Until the move is complete, all rules of the moving daemon are in place.
#[tokio::test(flavor = "current_thread")]
async fn daemon_moves_to_slot_0_without_a_gap() {
    for tool in TOOLS {
        choose(tool);
        let (mut first, mut second) = (Daemon::new(tool, 5, 0, 6), Daemon::new(tool, 6, 1, 5));
        assert!(first.pass().await && second.pass().await);
        let right = rules_of(6);
        second.others.served.clear();
        second.others.unknown = false;
        second.slot = 0;
        assert!(second.pass().await);
        let twice: Vec<String> =
            right.iter().flat_map(|line| [line.clone(), line.clone()]).collect();
        assert_eq!(rules_of(6), twice, "{tool:?} {}", sh(LIST));
        second.remove_unused().await;
        assert_eq!((rules_of(5), rules_of(6)), (Vec::new(), right), "{tool:?} {}", sh(LIST));
        assert!(!has_slot(1) && !second.pass().await, "{tool:?} {}", sh(LIST));
    }
}
