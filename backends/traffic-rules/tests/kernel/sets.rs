//! Random sets of rules, in the syntax of iptables-restore and nft.

use crate::bed::{PORTS, address};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use std::fmt;
use types::Family;

pub(crate) struct RuleSet {
    pub family: Family,
    /// Whether the bridge passes frames to the IP hooks (`bridge-nf-call-iptables`).
    pub bridge_calls_ip: bool,
    /// Input for iptables-legacy-restore.
    pub legacy: String,
    /// Input for iptables-nft-restore.
    pub nft_variant: String,
    /// Input for nft.
    pub nft: String,
}

impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}, bridge calls IP: {}\nlegacy:\n{}nft variant:\n{}nft:\n{}",
            self.family, self.bridge_calls_ip, self.legacy, self.nft_variant, self.nft
        )
    }
}

impl RuleSet {
    pub(crate) fn random(random: &mut StdRng, seed: u64) -> Self {
        let family = if random.random_bool(0.3) { Family::V6 } else { Family::V4 };
        let mut dice = Dice { random, family };
        let (mut legacy, mut nft_variant, mut nft) = (String::new(), String::new(), String::new());
        match seed % 4 {
            0 => legacy = dice.iptables(),
            1 => nft_variant = dice.iptables(),
            2 => nft = dice.nft(),
            _ => {
                if dice.chance(0.5) {
                    legacy = dice.iptables();
                }
                nft = dice.nft();
            }
        }
        let bridge_calls_ip = dice.chance(0.5);
        Self { family, bridge_calls_ip, legacy, nft_variant, nft }
    }

    pub(crate) fn none() -> Self {
        let [legacy, nft_variant, nft] = [const { String::new() }; 3];
        Self { family: Family::V4, bridge_calls_ip: false, legacy, nft_variant, nft }
    }
}

struct Dice<'a> {
    random: &'a mut StdRng,
    family: Family,
}

impl Dice<'_> {
    fn chance(&mut self, of: f64) -> bool {
        self.random.random_bool(of)
    }

    fn pick<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all.choose(self.random).unwrap()
    }

    /// A random network or address that may match a sender if `source` is true, otherwise a
    /// receiver.
    fn net(&mut self, source: bool) -> String {
        let (net, part) = (if source { 1 } else { 2 }, self.random.random_range(0..4));
        let one = address(self.family, net, part);
        match self.random.random_range(0..4) {
            0 => one.to_string(),
            1 => format!("{one}/{}", self.family.pick(16, 32)),
            _ => {
                format!(
                    "{one}/{}",
                    self.family.pick(24, 48) - i32::from(self.random.random_bool(0.3))
                )
            }
        }
        .replace("7/", "0/")
    }

    fn span(&mut self, source: bool) -> String {
        let (net, first) = (if source { 1 } else { 2 }, self.random.random_range(0..3));
        let last = self.random.random_range(first + 1..5);
        format!("{}-{}", address(self.family, net, first), address(self.family, net, last))
    }

    fn port(&mut self) -> u16 {
        *PORTS.choose(self.random).unwrap()
    }

    fn ports(&mut self) -> (u16, u16) {
        let (one, two) = (self.port(), self.port());
        // nft accepts no range of one port.
        (one.min(two), one.max(two) + 1)
    }

    fn not(&mut self) -> bool {
        self.chance(0.2)
    }

    fn iptables(&mut self) -> String {
        let mut text = String::new();
        for (table, of, chains) in [
            ("raw", 0.4, &["PREROUTING"][..]),
            ("mangle", 0.5, &["PREROUTING", "FORWARD", "INPUT", "POSTROUTING"]),
            ("filter", 1.0, &["INPUT", "FORWARD"]),
        ] {
            if !self.chance(of) {
                continue;
            }

            text += &format!("*{table}\n");
            let policies: Vec<bool> = chains
                .iter()
                .map(|_| self.chance(if table == "filter" { 0.4 } else { 0.03 }))
                .collect();
            for (chain, drops) in chains.iter().zip(policies) {
                text += &format!(":{chain} {} [0:0]\n", if drops { "DROP" } else { "ACCEPT" });
            }
            let own: &[&str] = if self.chance(0.7) { &["own", "more"] } else { &[] };
            own.iter().for_each(|chain| text += &format!(":{chain} - [0:0]\n"));
            for chain in chains.iter().chain(own) {
                for _ in 0..self.random.random_range(0..5) {
                    let rule = self.iptables_rule(table, chain, own);
                    text += &format!("-A {chain}{rule}\n");
                }
            }
            text += "COMMIT\n";
        }
        text
    }

    fn iptables_rule(&mut self, table: &str, chain: &str, own: &[&str]) -> String {
        let mut text = String::new();
        let mut protocol = false;
        for _ in 0..self.random.random_range(1..3) {
            let not = if self.not() { " !" } else { "" };
            match self.random.random_range(0..10) {
                0 if !text.contains(" -s ") => {
                    text += &format!("{not} -s {}", self.net(true));
                }
                1 if !text.contains(" -d ") => text += &format!("{not} -d {}", self.net(false)),
                2 if chain != "POSTROUTING" && !text.contains(" -i ") => {
                    let name = self.pick(&["br0", "eth9", "br+", "eth+", "b+"]);
                    text += &format!("{not} -i {name}");
                }
                3 if !matches!(chain, "PREROUTING" | "INPUT" | "own" | "more")
                    && !text.contains(" -o ") =>
                {
                    text += &format!("{not} -o {}", self.pick(&["out0", "out+", "br0", "eth9"]));
                }
                4 | 5 if !protocol => {
                    protocol = true;
                    text += &self.iptables_protocol(not);
                }
                6 if !text.contains("--ctstate") => text += &self.iptables_state(not),
                7 if !text.contains("--mark") => {
                    text += &format!(
                        " -m mark{not} --mark {}",
                        self.pick(&["0x1/0x1", "0x0/0x3", "0x2", "0x10/0xf0"])
                    );
                }
                8 if !text.contains("physdev") => text += &self.iptables_physdev(chain, not),
                9 if !text.contains("-range") => {
                    let (side, source) =
                        if self.chance(0.5) { ("src", true) } else { ("dst", false) };
                    text += &format!(" -m iprange{not} --{side}-range {}", self.span(source));
                }
                _ => {}
            }
        }
        if self.chance(0.02) {
            text += " -m length --length 0:60";
        }
        text + " " + &self.iptables_target(table, chain, own)
    }

    fn iptables_protocol(&mut self, not: &str) -> String {
        let name = self.pick(&["udp", "tcp"]);
        match self.random.random_range(0..5) {
            0 => format!("{not} -p {name}"),
            1 => format!(" -p {name} -m {name}{not} --dport {}", self.port()),
            2 => {
                let (first, last) = self.ports();
                format!(" -p {name} -m {name}{not} --dport {first}:{last}")
            }
            3 => {
                let (first, last) = self.ports();
                format!(" -p {name} -m multiport{not} --dports {},{first}:{last}", self.port())
            }
            _ => {
                let (own, module) = self
                    .family
                    .pick(("icmp", "icmp --icmp-type 8"), ("ipv6-icmp", "icmp6 --icmpv6-type 128"));
                format!(" -p {own} -m {module}")
            }
        }
    }

    fn iptables_state(&mut self, not: &str) -> String {
        let state = self.pick(&[
            "NEW",
            "RELATED,ESTABLISHED",
            "ESTABLISHED",
            "INVALID",
            "NEW,DNAT",
            "UNTRACKED",
        ]);

        format!(" -m conntrack{not} --ctstate {state}")
    }

    fn iptables_physdev(&mut self, chain: &str, not: &str) -> String {
        let leaves = matches!(chain, "FORWARD" | "POSTROUTING");
        let condition = match self.random.random_range(0..if leaves { 4 } else { 2 }) {
            0 | 1 => format!("{not} --physdev-in {}", self.pick(&["pt0", "pt+", "pt1", "eth9"])),
            2 => format!("{not} --physdev-is-bridged"),
            _ => format!(
                " --physdev-is-bridged{not} --physdev-out {}",
                self.pick(&["pt1", "pt+", "pt0"])
            ),
        };
        format!(" -m physdev{condition}")
    }

    fn iptables_target(&mut self, table: &str, chain: &str, own: &[&str]) -> String {
        let next = match chain {
            "own" => own.get(1),
            "more" => None,
            _ => own.first(),
        };
        match (self.random.random_range(0..10), next) {
            (0 | 1, Some(next)) => format!("-j {next}"),
            (2, Some(next)) => format!("-g {next}"),
            (3, _) => "-j RETURN".to_owned(),
            (4 | 5, _) if table == "mangle" => format!(
                "-j MARK --set-xmark {}",
                self.pick(&["0x1/0x1", "0x2/0xffffffff", "0x10/0x10"])
            ),
            (4, _) if table == "raw" && chain == "PREROUTING" => "-j CT --notrack".to_owned(),
            (6 | 7, _) if table == "filter" || self.chance(0.3) => {
                if table == "filter" && self.chance(0.4) { "-j REJECT" } else { "-j DROP" }
                    .to_owned()
            }
            _ => "-j ACCEPT".to_owned(),
        }
    }

    fn nft(&mut self) -> String {
        let (kind, word) = self.family.pick(("ipv4_addr", "ip"), ("ipv6_addr", "ip6"));
        let (one, two) = (self.net(true), self.net(false));
        let (three, four) = (self.net(true), self.net(false));
        let (port, other) = (self.port(), self.port());
        let mut text = format!(
            "table inet main {{
set nets {{ type {kind}; flags interval; elements = {{ {one} }}; }}
set pairs {{ type {kind} . {kind}; flags interval; elements = {{ {three} . {two} }}; }}
set ports {{ type inet_service; elements = {{ {port} }}; }}
map ways {{ type ifname : verdict; elements = {{ \"br0\" : jump more, \"eth9\" : drop }}; }}
map doors {{ type {kind} . inet_service : verdict; flags interval; elements = {{ {four} . {other} : drop }}; }}
"
        );
        text += &self.nft_own_chains(word);
        text += &self.nft_base_chains(word);
        text += "}\n";
        if self.chance(0.8) {
            text += &self.nft_bridge_table(word);
        }
        if self.chance(0.3) {
            text += &self.nft_ingress_table();
        }
        text
    }

    fn nft_own_chains(&mut self, word: &str) -> String {
        let mut text = "chain more {\n".to_owned();
        for _ in 0..self.random.random_range(0..3) {
            let rule = self.nft_rule(word, false, &[]);
            text += &format!("{rule}\n");
        }
        text += "}\nchain own {\n";
        for _ in 0..self.random.random_range(0..4) {
            let rule = self.nft_rule(word, false, &["more"]);
            text += &format!("{rule}\n");
        }
        text + "}\n"
    }

    fn nft_base_chains(&mut self, word: &str) -> String {
        let mut text = String::new();
        for (hook, priority, of) in [
            ("prerouting", -300_i32, 0.4),
            ("prerouting", -150, 0.4),
            ("input", 0, 1.0),
            ("forward", 0, 1.0),
            ("forward", 10, 0.6),
        ] {
            if !self.chance(of) {
                continue;
            }

            let drops = self.chance(if priority < 0 { 0.03 } else { 0.35 });
            let policy = if drops { "drop" } else { "accept" };
            text += &format!(
                "chain {hook}{} {{ type filter hook {hook} priority {priority}; policy {policy};\n",
                priority.unsigned_abs()
            );
            for _ in 0..self.random.random_range(1..6) {
                let rule = self.nft_rule(word, hook == "forward", &["own", "more"]);
                text += &format!("{rule}\n");
            }
            if priority == -300 && self.chance(0.3) {
                text += "notrack\n";
            }
            text += "}\n";
        }
        text
    }

    fn nft_bridge_table(&mut self, word: &str) -> String {
        let hook =
            self.pick(&["prerouting", "input", "forward", "forward", "forward", "postrouting"]);
        let (net, to, port) = (self.net(true), self.net(false), self.port());
        let rule = match self.random.random_range(0..7) {
            0 => format!("{word} saddr {net} drop"),
            1 => format!("{word} saddr {net} {word} daddr {to} drop"),
            2 => format!("iifname \"pt*\" udp dport {port} drop"),
            3 => "iifname \"eth9\" drop".to_owned(),
            4 => format!("oifname \"pt1\" {word} daddr {to} drop"),
            5 => format!("oifname != \"pt1\" udp dport {port} drop"),
            _ => format!("meta protocol {word} meta l4proto tcp drop"),
        };
        format!(
            "table bridge walls {{ chain c {{ type filter hook {hook} priority -5;\n{rule}\n}}\n}}\n"
        )
    }

    fn nft_ingress_table(&mut self) -> String {
        let (device, port) = (self.pick(&["pt0", "out0"]), self.port());
        format!(
            "table netdev gate {{ chain c {{ type filter hook ingress device {device} priority 0;\nudp dport {port} drop\n}}\n}}\n"
        )
    }

    fn nft_rule(&mut self, word: &str, leaves: bool, next: &[&str]) -> String {
        let mut parts = Vec::new();
        for _ in 0..self.random.random_range(1..3) {
            parts.push(self.nft_condition(word, leaves));
        }
        if self.chance(0.02) {
            parts.push("meta length < 60".to_owned());
        }
        let end = match (self.random.random_range(0..14), next) {
            (0 | 1, [first, ..]) => format!("jump {first}"),
            (2, [first, ..]) => format!("goto {first}"),
            (3, _) => "return".to_owned(),
            (4, _) => self
                .pick(&[
                    "meta mark set 0x1",
                    "meta mark set mark or 0x10",
                    "meta mark set mark and 0xfffffffe",
                    "meta mark set mark xor 0x2",
                ])
                .to_owned(),
            (5, ["own", ..]) => "iifname vmap @ways".to_owned(),
            (6, _) => format!("{word} daddr . udp dport vmap @doors"),
            (7, _) => self
                .pick(&[
                    "ct state vmap { established : accept, new : drop }",
                    "ct state vmap { new : accept, established : drop }",
                ])
                .to_owned(),
            (8 | 9, _) => "drop".to_owned(),
            _ => "accept".to_owned(),
        };
        // The verdict map itself requires UDP.
        if end.contains("udp dport") {
            parts.retain(|part| !part.contains("tcp") && !part.contains("icmp"));
        }
        parts.push(end);
        // A packet has only one protocol, and nft refuses conditions on a second one.
        let mut first = None;
        parts.retain(|part| {
            let protocol = ["tcp", "udp", "icmp", "meta l4proto"]
                .into_iter()
                .find(|protocol| part.starts_with(protocol));
            let fits = protocol.is_none() || first.is_none() || protocol == first;
            first = first.or(protocol);
            fits
        });
        parts.join(" ")
    }

    fn nft_condition(&mut self, word: &str, leaves: bool) -> String {
        let not = if self.not() { "!= " } else { "" };
        match self.random.random_range(0..15) {
            which @ 0..=4 => self.nft_addresses(which, word, not),
            5 => format!("iifname {not}{}", self.pick(&["\"br*\"", "\"eth*\"", "\"b*\""])),
            6 => format!("iifname {not}{{ \"br0\", \"eth9\" }}"),
            7 if leaves => {
                format!("oifname {not}{}", self.pick(&["\"out0\"", "\"eth9\"", "\"out*\""]))
            }
            which @ 8..=10 => self.nft_ports(which, not),
            11 => self.nft_state(),
            12 => self
                .pick(&[
                    "meta mark & 0x1 == 0x1",
                    "meta mark & 0x10 != 0",
                    "meta mark 0",
                    "meta mark { 1, 0x10-0x20 }",
                ])
                .to_owned(),
            13 => self.family.pick("icmp type echo-request", "icmpv6 type echo-request").to_owned(),
            _ => format!("meta l4proto {not}{{ tcp, 132 }}"),
        }
    }

    fn nft_addresses(&mut self, which: i32, word: &str, not: &str) -> String {
        match which {
            0 => format!("{word} saddr {not}{}", self.net(true)),
            1 => {
                let (one, two) = (
                    address(self.family, 1, 0),
                    address(self.family, 1, self.random.random_range(1..4)),
                );
                format!("{word} saddr {not}{{ {one}, {two} }}")
            }
            2 => format!("{word} daddr {not}{}", self.span(false)),
            3 => format!("{word} saddr {not}@nets"),
            _ => format!("{word} saddr . {word} daddr {not}@pairs"),
        }
    }

    fn nft_ports(&mut self, which: i32, not: &str) -> String {
        match which {
            8 => {
                let name = self.pick(&["tcp", "udp"]);
                format!("{name} dport {not}{}", self.port())
            }
            9 => {
                let (first, last) = self.ports();
                format!(
                    "udp dport {not}{{ {}, {first}-{last} }}",
                    65000 + self.random.random_range(0..9)
                )
            }
            _ => format!("udp dport {not}@ports"),
        }
    }

    fn nft_state(&mut self) -> String {
        let states = [
            "ct state new",
            "ct state established,related",
            "ct state != established",
            "ct state { new, untracked }",
            "ct state invalid",
        ];
        self.pick(&states).to_owned()
    }
}
