//! Takes samples of the network's traffic, and reads the counters of devices for the metrics.

use crate::health::Health;
use crate::health::samples::{STEP, Totals};
use crate::network::RunningNetwork;
use backends::status::EngineStatus;
use netlink::Client;
use netlink::link::{Counters, link_of_name, look_up_links};
use std::collections::BTreeMap;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Takes a sample of the network's traffic every five seconds, until `stop`.
pub async fn keep(health: Health, stop: CancellationToken) {
    let mut client = match Client::open() {
        Ok(client) => Some(client),
        Err(error) => {
            debug!(error = %error, "cannot read the counters of devices");
            None
        }
    };
    let mut ticks = tokio::time::interval(STEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        let mut devices = BTreeMap::new();
        for device in health.devices() {
            let request = vec![link_of_name(&device)];
            if let Some(client) = &mut client
                && let Ok(found) = look_up_links(client, request, |link| link.counters)
            {
                devices.extend(found.into_iter().map(|counters| (device.clone(), counters)));
            }
        }
        let totals = match health.network() {
            Some(network) => totals(&network, &devices, health.rule_repairs()),
            None => Totals::default(),
        };
        let now = Instant::now();
        health.sampled(totals, now - last, devices);
        last = now;
    }
}

/// Sums over all devices and packet engines.
fn totals(
    network: &RunningNetwork,
    devices: &BTreeMap<String, Counters>,
    rule_repairs: u64,
) -> Totals {
    let status = network.observer.status();
    let sum = |value: fn(&Counters) -> u64| {
        (!devices.is_empty()).then(|| devices.values().map(value).sum())
    };
    let dropped_by = |engine: &EngineStatus| -> u64 {
        let all = engine.sent.dropped.iter().chain(&engine.received.dropped);
        all.map(|(_, packets)| packets).sum()
    };
    let by_engines: u64 = status.engines.iter().map(dropped_by).sum();
    Totals {
        received_bytes: sum(|device| device.received.bytes),
        sent_bytes: sum(|device| device.sent.bytes),
        dropped: sum(|device| {
            device.received.dropped
                + device.received.errors
                + device.sent.dropped
                + device.sent.errors
        })
        .map(|dropped| dropped + by_engines),
        repaired: Some(status.kernel.repairs + rule_repairs),
        rtt_us: network.prober.as_ref().and_then(|prober| prober.figures().rtt_us),
    }
}
