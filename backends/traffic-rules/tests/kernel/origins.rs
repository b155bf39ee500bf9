//! A start leads to the rules of a first start, whatever rules of flannel-rs or Go flannel the host
//! has, and rules of other programs stay.

use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;
use traffic_rules::rules::{GuardOptions, OtherDaemons, RuleOptions};
use traffic_rules::variant::Variant;
use traffic_rules::{ActiveRules, Applier, Wanted, clear_inactive};
use types::{Dual, Encapsulation};

/// Rules of other programs: in nftables, and in each table of both iptables variants and families.
const OTHERS: &str = "
nft flush ruleset
for variant in nft legacy; do for family in ip ip6; do
    case $family in ip) one=198.51.100.7; many=198.51.100.0/24;; *) one=fd99::7; many=fd99::/64;; esac
    ${family}tables-$variant-restore <<END
*raw
:PREROUTING ACCEPT
:OUTPUT ACCEPT
-A PREROUTING -s $one -j ACCEPT
COMMIT
*mangle
:PREROUTING ACCEPT
:INPUT ACCEPT
:FORWARD ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
-A PREROUTING -s $one -j MARK --set-xmark 0x7/0xffffffff
COMMIT
*nat
:PREROUTING ACCEPT
:INPUT ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
:THEIRS -
-A POSTROUTING -j THEIRS
-A THEIRS -s $many -m comment --comment \"not flanneld\" -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT
:FORWARD ACCEPT
:OUTPUT ACCEPT
-A FORWARD -s $one -j DROP
COMMIT
END
done; done
nft 'table inet foreign { chain forward { type filter hook forward priority 10; policy accept; ip saddr 198.51.100.7 drop; }; }
     table ip foreign { chain postrouting { type nat hook postrouting priority 110; policy accept; ip saddr 198.51.100.0/24 masquerade; }; }'
";

/// Lists each rule and each own chain behind its place, place by place: first those of iptables, then those of nftables.
const LIST: &str = r#"
for variant in nft legacy; do for family in ip ip6; do
    ${family}tables-$variant-save | sed 's/ \[.*//' | awk -v place=$family-$variant '
        /^\*/ { table = $1 } /^:.* -$/ { print place, table, substr($1, 2) } /^-A/ { print place, table, $2, $0 }'
done; done | sort -s -k1,3
nft -s list ruleset | awk '
    /^table/ { table = $2 " " $3; chain = "-" } /^\tchain/ { chain = $2 }
    table !~ /^ip6? (raw|mangle|nat|filter)$/ && NF > 1 { print "nft", table, chain, $0 }' | sort -s -k1,4
"#;

/// Rules that Go flannel v0.17 to v0.19 wrote directly into the built-in chains.
const BUILT_IN: &str = r#"
go() { ${1}tables-$variant-restore --noflush <<END
*nat
-A POSTROUTING -s $2 -d $2 -m comment --comment "flanneld masq" -j RETURN
-A POSTROUTING -s $2 ! -d $3 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A POSTROUTING ! -s $2 -d $4 -m comment --comment "flanneld masq" -j RETURN
-A POSTROUTING ! -s $2 -d $2 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
-A FORWARD -s $2 -m comment --comment "flanneld forward" -j ACCEPT
-A FORWARD -d $2 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
END
}
go ip 10.244.0.0/16 224.0.0.0/4 10.244.90.0/24; go ip6 fd10:244::/48 ff00::/8 fd10:244:0:22::/64
"#;

/// Only Go flannel's chain for forwarded packets, with one of its rules.
const FORWARD: &str = r#"
go() { ${1}tables-$variant -N FLANNEL-FWD; ${1}tables-$variant -A FLANNEL-FWD -s $2 -j ACCEPT
    ${1}tables-$variant -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD; }
go ip 10.244.0.0/16; go ip6 fd10:244::/48
"#;

pub(crate) fn sh(script: &str) -> String {
    let mut shell = Command::new("sh");
    let mut child = shell.arg("-e").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{script}");
    String::from_utf8(output.stdout).unwrap()
}

fn golden(case: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../flanneld/tests/golden/");
    std::fs::read_to_string(format!("{folder}{case}")).unwrap()
}

/// Go flannel's chains as captured, as a script. A part of the capture begins with a line such as `# iptables -t nat -S`.
fn captured_chains() -> String {
    let mut script = String::new();
    let mut command = String::new();
    for line in golden("masq-dual/iptables.txt").lines() {
        match line.strip_prefix("# ") {
            Some(listing) => {
                command = listing.replace("tables", "tables-$variant").replace("-S", "");
            }
            None if line.starts_with("-P") => {}
            None => script.push_str(&format!("{command}{line}\n")),
        }
    }
    script
}

/// Does what a start does with the rules, in the lease of the capture. The result is the tool of
/// the first family.
async fn start(nftables: bool) -> ActiveRules {
    let wanted = Wanted {
        networks: Dual::Both("10.244.0.0/16".parse().unwrap(), "fd10:244::/48".parse().unwrap()),
        own: Dual::Both("10.244.90.0/24".parse().unwrap(), "fd10:244:0:22::/64".parse().unwrap()),
        options: RuleOptions {
            masquerade: true,
            fully_random: true,
            masquerade_inbound: true,
            non_masquerade: Vec::new(),
            forward: true,
            forward_insert: false,
            guard: GuardOptions::default(),
        },
        nftables,
        resync: Duration::from_secs(60),
        encapsulation: Encapsulation::None,
        hosts: BTreeSet::new(),
        peers: BTreeSet::new(),
        slot: 0,
        others: OtherDaemons::default(),
    };
    let mut kept = [ActiveRules::Nftables; 2];
    for (rules, kept) in wanted.rulesets().iter().zip(&mut kept) {
        let mut applier = Applier::new(nftables, rules.family);
        applier.apply(rules).await.unwrap();
        if let Some(variant) = applier.variant() {
            *kept = ActiveRules::Iptables(variant);
        }
        assert!(!applier.apply(rules).await.unwrap().wrote, "a second pass writes");
    }
    let others = OtherDaemons { own: wanted.networks.nets().collect(), ..OtherDaemons::default() };
    let cleared = clear_inactive(kept, 0, &others).await;
    assert!(cleared.errors.is_empty(), "{cleared:?}");
    kept[0]
}

#[tokio::test(flavor = "current_thread")]
async fn first_start_creates_only_its_own_tables() {
    for (nftables, tables) in [
        (false, "table ip filter\ntable ip nat\ntable ip6 filter\ntable ip6 nat\n"),
        (true, "table ip flannel-ipv4\ntable ip6 flannel-ipv6\n"),
    ] {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        start(nftables).await;
        assert_eq!(
            sh(
                "nft list tables | sort; cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>&- || true"
            ),
            tables
        );
    }
}

#[tokio::test(flavor = "current_thread")]
async fn rules_of_every_origin_become_those_of_a_first_start() {
    const NFT: ActiveRules = ActiveRules::Iptables(Variant::Nft);
    const LEGACY: ActiveRules = ActiveRules::Iptables(Variant::Legacy);
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let chains = captured_chains();
    let earlier_lease = chains
        .replace("10.244.90.0/24", "10.244.91.0/24")
        .replace("fd10:244:0:22::/64", "fd10:244:0:23::/64");
    let tables = format!("nft -f - <<'END'\n{}END\n", golden("nft-dual/nft.txt"));
    // The rules in `OTHERS` are in both variants, so the system's choice decides where flannel has no rules.
    let origins = [
        ("", "nft", NFT),
        (&chains, "nft", NFT),
        (&earlier_lease, "nft", NFT),
        (&chains, "legacy", LEGACY),
        (FORWARD, "legacy", LEGACY),
        (BUILT_IN, "nft", NFT),
        (BUILT_IN, "legacy", LEGACY),
        (&tables, "nft", NFT),
    ];
    let mut first: Vec<(ActiveRules, String)> = Vec::new();
    for (origin, variant, iptables) in origins {
        for before in [None, Some(false), Some(true)] {
            for nftables in [false, true] {
                sh(OTHERS);
                let theirs = sh(LIST);
                sh(&format!("variant={variant}\n{origin}"));
                // Perhaps another start comes in between.
                let between =
                    if let Some(nftables) = before { Some(start(nftables).await) } else { None };
                let kept = start(nftables).await;
                let wanted = match (nftables, between) {
                    (true, _) => ActiveRules::Nftables,
                    (false, Some(ActiveRules::Nftables)) => NFT,
                    (false, _) => iptables,
                };
                assert_eq!(kept, wanted, "{origin}");
                let now = sh(LIST);
                let foreign: String = now
                    .lines()
                    .filter(|line| {
                        line.contains("not flanneld") || !line.to_lowercase().contains("flannel")
                    })
                    .map(|line| format!("{line}\n"))
                    .collect();
                assert_eq!(foreign, theirs, "{origin}");
                match first.iter().find(|(tool, _)| *tool == kept) {
                    Some((_, first)) => assert_eq!(now, *first, "{origin}"),
                    None => first.push((kept, now)),
                }
            }
        }
    }
    assert!(
        first.len() == 3 && first.iter().all(|(_, rules)| rules.contains("10.244.90.0/24")),
        "{first:?}"
    );
}
