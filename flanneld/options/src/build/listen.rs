//! Reads the flags for the addresses and ports on which the daemon listens.

use crate::flags::HealthFlags;
use crate::reader::Reader;
use crate::settings::ListenSettings;
use crate::value::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

impl HealthFlags {
    pub(super) fn read(&self, reader: &mut Reader) -> ListenSettings {
        let Self {
            healthz_ip,
            healthz_port,
            status_ip,
            status_port,
            probe_port,
            probe_pods,
            metrics_per_peer,
        } = self;
        let probe_port = reader.ranged(probe_port, 0, 65_535, "ports; 0: no probes");
        ListenSettings {
            probe_pods: reader.on(probe_pods),
            metrics_per_peer: reader.on(metrics_per_peer),
            probe_port: u16::try_from(probe_port).ok().filter(|port| *port > 0),
            health: address(healthz_ip, healthz_port, reader),
            status: address(status_ip, status_port, reader),
        }
    }
}

/// `None` if the port is 0 or negative, as with Go flannel.
fn address(ip: &[Value<String>], port: &[Value<i64>], reader: &mut Reader) -> Option<SocketAddr> {
    let (from, port) = reader.last(port).filter(|(_, port)| *port > 0)?;
    let value = ip.last()?;
    let bare =
        value.text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&value.text);
    let ip = match bare {
        "" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => bare.parse().ok(),
    };
    if ip.is_none() {
        reader.wrong(
            value.unusable("not-an-address", format!("{:?} is not an IP address", value.text)),
        );
    }
    match u16::try_from(port) {
        Ok(port) => ip.map(|ip| SocketAddr::new(ip, port)),
        Err(_) => {
            reader.wrong(from.unusable(
                "not-a-port",
                format!("{port} is not a port; the highest port is 65535"),
            ));
            None
        }
    }
}
