//! Runs the prober in the daemon, and supplies the prober with the underlay's state and this node's report.

use crate::health::Health;
use backends::{Overlay, Underlay};
use doctor::finding::Severity;
use probing::prober::{Prober, ProberSettings, UnderlayState};
use probing::view::Own;
use run_dir::instance::lent::{self, tunnel_on};
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseTable;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use types::{Family, Subnets};

/// Interval at which the daemon passes this node's report about itself to the prober.
const TELL: Duration = Duration::from_secs(2);
/// Number of [`TELL`] intervals between two checks whether another network's tunnel uses the probe port.
const LOOK_AT_THE_PORT: u32 = 5;
/// Minimum time between two checks of the probe port at the request of other daemons.
const PAUSE: Duration = Duration::from_millis(100);

/// A prober, with the underlay and health on which it depends.
pub struct Mesh {
    pub prober: Prober,
    port: u16,
    overlay: Overlay,
    own: Subnets,
    underlay: watch::Receiver<Underlay>,
    health: Health,
}

impl Mesh {
    /// `port` is the UDP port for probes and for replies to other nodes' probes.
    pub fn new(
        port: u16,
        id: &str,
        own: Subnets,
        overlay: Overlay,
        underlay: watch::Receiver<Underlay>,
        health: Health,
    ) -> Self {
        let own = overlay.carried(own);
        let settings = ProberSettings {
            port,
            id: id.to_owned(),
            own,
            kinds: overlay.kinds,
            device: overlay.device,
            outer: overlay.outer,
            clear: overlay.clear,
        };
        let prober = Prober::new(
            settings,
            &surroundings(&underlay.borrow(), &own, &overlay, tunnel_on(port)),
        );
        Self { prober, port, overlay, own, underlay, health }
    }

    pub async fn run(mut self, leases: watch::Receiver<Arc<LeaseTable>>, stop: CancellationToken) {
        // Opened before the first check, so that no later request is missed.
        let (requests, mut quiet_until) = (asked_for(self.port), Instant::now());
        let (mut yields_to, mut number) = (tunnel_on(self.port), 0u32);
        let (out, around) = watch::channel(surroundings(
            &self.underlay.borrow_and_update(),
            &self.own,
            &self.overlay,
            yields_to.clone(),
        ));
        let prober = self.prober.clone().run(leases, around, stop.clone());
        let follow = async {
            let mut ticks = tokio::time::interval(TELL);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = asked_back(requests.as_ref(), quiet_until) => {
                        quiet_until = Instant::now() + PAUSE;
                        yields_to = tunnel_on(self.port);
                    }
                    changed = self.underlay.changed() => if changed.is_err() { std::future::pending::<()>().await },
                    _ = ticks.tick() => {
                        self.prober.set_own(own_report(&self.health));
                        number = number.wrapping_add(1);
                        if number.is_multiple_of(LOOK_AT_THE_PORT) {
                            yields_to = tunnel_on(self.port);
                        }
                    }
                }
                let now = surroundings(
                    &self.underlay.borrow_and_update(),
                    &self.own,
                    &self.overlay,
                    yields_to.clone(),
                );
                out.send_if_modified(|present| {
                    let news = *present != now;
                    if news {
                        *present = now;
                    }
                    news
                });
            }
        };
        tokio::select! {
            () = prober => {}
            () = follow => {}
        }
    }
}

/// Other daemons on this host request the probe port on this socket.
fn asked_for(port: u16) -> Option<UnixListener> {
    let listener = lent::borrow(port).and_then(UnixListener::from_std);
    // Without the socket, the tunnel gets the port at the next check.
    listener
        .inspect_err(|error| tracing::debug!(port, error = %error, "other daemons cannot request the probe port"))
        .ok()
}

/// Waits until a tunnel requests the probe port, but not before `quiet_until`, because any process on this host can
/// send requests in a loop.
async fn asked_back(requests: Option<&UnixListener>, quiet_until: Instant) {
    match requests {
        Some(requests) => {
            tokio::time::sleep_until(quiet_until).await;
            let _ = requests.accept().await;
        }
        None => std::future::pending().await,
    }
}

/// Failed doctor checks that the report to other nodes names.
const MAX_CHECKS: usize = 16;

/// Other nodes request this report.
fn own_report(health: &Health) -> Own {
    let report = health.report();
    let count = |severity: Severity| {
        let causes = report.iter().flat_map(|report| report.causes());
        u16::try_from(causes.filter(|finding| finding.severity == severity).count())
            .unwrap_or(u16::MAX)
    };
    Own {
        ready: health.ready(),
        broken: count(Severity::Broken),
        degraded: count(Severity::Degraded),
        risks: count(Severity::Risk),
        gravest: report
            .as_ref()
            .and_then(|report| report.causes().next())
            .map(|finding| finding.check.clone()),
        checks: report
            .iter()
            .flat_map(|report| report.causes())
            .map(|finding| finding.check.clone())
            .take(MAX_CHECKS)
            .collect(),
    }
}

/// For the prober. `yields_to` is the tunnel that takes over the probe port.
fn surroundings(
    underlay: &Underlay,
    own: &Subnets,
    overlay: &Overlay,
    yields_to: Option<String>,
) -> UnderlayState {
    // If all tunnels use one family, probes are sent from that family's address.
    let wanted = |family: Family| match overlay.outer {
        Some(outer) => outer == family,
        None => own.has(family),
    };
    let address = |family: Family| underlay.tunnel_source(family).filter(|_| wanted(family));
    let mtu =
        |family: Family| u16::try_from((overlay.mtu)(underlay.mtu, family)).unwrap_or(u16::MAX);
    UnderlayState {
        addresses: (address(Family::V4), address(Family::V6)),
        local: underlay.local.clone(),
        mtu: (mtu(Family::V4), mtu(Family::V6)),
        yields_to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use subnet_lease::Kinds;
    use types::Dual;

    #[test]
    fn probes_use_the_addresses_of_the_tunnels() {
        let (v4, v6) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let underlay = Underlay {
            index: 2,
            name: "eth0".into(),
            mtu: 1500,
            addresses: Dual::Both(v4, v6),
            public: Dual::Both(v4, v6),
            local: vec!["192.0.2.1/24".parse().unwrap()],
            links: Vec::new(),
        };
        let overlay = |outer| Overlay {
            kinds: Kinds::Any,
            device: true,
            outer,
            family: None,
            clear: true,
            mtu: Arc::new(|mtu, family| mtu - family.pick(50, 70)),
        };
        let both = Dual::Both("10.5.1.0/24".parse().unwrap(), "fd00::/64".parse().unwrap());
        let around = surroundings(&underlay, &both, &overlay(None), None);
        assert_eq!(
            around,
            UnderlayState {
                addresses: (Some(v4.into()), Some(v6.into())),
                local: vec!["192.0.2.1/24".parse().unwrap()],
                mtu: (1450, 1430),
                yields_to: None
            }
        );
        assert_eq!(
            surroundings(&underlay, &both, &overlay(Some(Family::V4)), None).addresses,
            (Some(v4.into()), None)
        );
        let one = Dual::V4("10.5.1.0/24".parse().unwrap());
        assert_eq!(
            surroundings(&underlay, &one, &overlay(None), None).addresses,
            (Some(v4.into()), None)
        );
    }
}
