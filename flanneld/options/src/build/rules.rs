//! Reads the flags of the traffic rules.

use crate::flags::RuleFlags;
use crate::reader::Reader;
use crate::settings::RuleSettings;
use crate::value::Value;
use std::time::Duration;
use traffic_rules::rules::{GuardOptions, RuleOptions};
use types::Problem;

impl RuleFlags {
    pub(super) fn read(&self, reader: &mut Reader) -> RuleSettings {
        let Self {
            ip_masq,
            ip_masq_fully_random_disable,
            non_masquerade_cidr,
            masquerade_inbound,
            iptables_forward_rules,
            iptables_forward_insert,
            iptables_resync,
            encap_notrack,
            encap_peers,
            encap_bar_pods,
            ip_blackhole_route,
        } = self;
        let resync = resync(iptables_resync, reader);
        let blackhole = reader.on(ip_blackhole_route);
        let mut non_masquerade = Vec::new();
        for value in non_masquerade_cidr {
            match value.text.parse::<ipnet::IpNet>() {
                Ok(net) => non_masquerade.push(net.trunc()),
                Err(_) => reader.wrong(value.unusable(
                    "not-a-network",
                    format!("{:?} is not a network such as 10.0.0.0/8", value.text),
                )),
            }
        }
        let unknown_senders = reader.choice(encap_peers);
        let options = RuleOptions {
            guard: GuardOptions {
                notrack: reader.on(encap_notrack),
                unknown_senders,
                bar_pods: reader.on(encap_bar_pods),
            },
            masquerade: reader.on(ip_masq),
            fully_random: !reader.on(ip_masq_fully_random_disable),
            masquerade_inbound: reader.on(masquerade_inbound),
            non_masquerade,
            forward: reader.on(iptables_forward_rules),
            forward_insert: reader.on(iptables_forward_insert),
        };
        RuleSettings { options, resync, blackhole }
    }
}

/// Accepts every number that Go flannel accepts.
fn resync(values: &[Value<i64>], reader: &mut Reader) -> Duration {
    let Some((value, seconds)) = reader.last(values) else {
        return Duration::ZERO;
    };
    let seconds = u64::try_from(seconds).unwrap_or(0);
    if seconds == 0 {
        reader.warnings.push(Problem::new(
            "resync-without-pause",
            format!("{}: Go flannel would loop without a pause; using 5 s", value.from),
        ));
    }
    Duration::from_secs(if seconds == 0 { 5 } else { seconds.min(86_400) })
}
