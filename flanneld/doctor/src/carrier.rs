//! What packets between nodes are recognised by, in the words of people, of firewalls and of captures.

pub use traffic_rules::rules::Carrier;

/// One kind of packets between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UDP to this port.
    Udp(u16),
    /// IP in IP: protocol 4.
    Ipip,
}

impl Kind {
    /// What selects it in a rule of iptables.
    pub fn iptables(self) -> String {
        match self {
            Kind::Udp(port) => format!("-p udp --dport {port}"),
            // The number: names are in a file that not every host has.
            Kind::Ipip => "-p 4".to_owned(),
        }
    }

    fn capture(self) -> String {
        match self {
            Kind::Udp(port) => format!("udp port {port}"),
            Kind::Ipip => "ip proto 4".to_owned(),
        }
    }
}

/// The kinds of packets, in a family of the underlay.
pub fn kinds(carrier: &Carrier, ipv6: bool) -> Vec<Kind> {
    match carrier {
        Carrier::Udp(ports) => ports.iter().copied().map(Kind::Udp).collect(),
        Carrier::Ipip if ipv6 => Vec::new(),
        Carrier::Ipip => vec![Kind::Ipip],
    }
}

/// The words for a reader.
pub fn words(carrier: &Carrier) -> String {
    match carrier {
        Carrier::Udp(ports) => {
            let numbers: Vec<String> = ports.iter().map(u16::to_string).collect();
            format!("UDP port{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(" and "))
        }
        Carrier::Ipip => "IP protocol 4 (IPIP)".to_owned(),
    }
}

/// What a capture selects, beside other conditions.
pub fn capture(carrier: &Carrier) -> String {
    let filters: Vec<String> = kinds(carrier, false).into_iter().map(Kind::capture).collect();
    match filters.as_slice() {
        [one] => one.clone(),
        several => format!("({})", several.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_have_words_and_filters() {
        let two = Carrier::Udp([51821, 51820].into());
        for (carrier, said, captured) in [
            (Carrier::port(8472), "UDP port 8472", "udp port 8472"),
            (two, "UDP ports 51820 and 51821", "(udp port 51820 or udp port 51821)"),
            (Carrier::Ipip, "IP protocol 4 (IPIP)", "ip proto 4"),
        ] {
            assert_eq!((words(&carrier).as_str(), capture(&carrier).as_str()), (said, captured));
        }
        assert_eq!((kinds(&Carrier::Ipip, true), kinds(&Carrier::port(7), true)), (vec![], vec![Kind::Udp(7)]));
    }
}
