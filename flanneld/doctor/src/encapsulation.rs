//! Descriptions of flannel's packets between nodes: as text, as conditions of iptables, and as filters of tcpdump.

use types::{Encapsulation, Family};

pub fn iptables(one: Encapsulation) -> String {
    match one.port() {
        Some(port) => format!("-p udp --dport {port}"),
        // By number, because not every host has /etc/protocols, which maps names to numbers.
        None => "-p 4".to_owned(),
    }
}

pub fn words(encapsulation: Encapsulation) -> String {
    match encapsulation {
        Encapsulation::None => "packets of pods".to_owned(),
        Encapsulation::Udp { .. } => {
            let numbers: Vec<String> = encapsulation.ports().iter().map(u16::to_string).collect();
            format!(
                "UDP port{} {}",
                if numbers.len() == 1 { "" } else { "s" },
                numbers.join(" and ")
            )
        }
        Encapsulation::Ipip => "IP protocol 4 (IPIP)".to_owned(),
    }
}

/// The verb for the text of [`words`].
pub(crate) fn is_or_are(encapsulation: Encapsulation) -> &'static str {
    if encapsulation.ports().len() > 1 { "are" } else { "is" }
}

/// A tcpdump filter that callers can combine with further conditions.
pub fn capture(encapsulation: Encapsulation) -> String {
    let filter = |one: Encapsulation| {
        one.port().map_or_else(|| "ip proto 4".to_owned(), |port| format!("udp port {port}"))
    };
    let filters: Vec<String> = encapsulation.each(Family::V4).into_iter().map(filter).collect();
    match filters.as_slice() {
        [one] => one.clone(),
        several => format!("({})", several.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Dual;

    #[test]
    fn encapsulations_have_words_and_filters() {
        let two = Encapsulation::Udp { ports: Dual::Both(51821, 51820), outer: None };
        for (encapsulation, named, captured) in [
            (Encapsulation::udp(8472), "UDP port 8472", "udp port 8472"),
            (two, "UDP ports 51820 and 51821", "(udp port 51820 or udp port 51821)"),
            (Encapsulation::Ipip, "IP protocol 4 (IPIP)", "ip proto 4"),
        ] {
            assert_eq!(
                (words(encapsulation).as_str(), capture(encapsulation).as_str()),
                (named, captured)
            );
        }
        assert_eq!(
            (iptables(Encapsulation::udp(7)).as_str(), iptables(Encapsulation::Ipip).as_str()),
            ("-p udp --dport 7", "-p 4")
        );
    }
}
