//! The traffic counters of network devices.

use super::socket::Requests;
use super::uapi::*;
use super::wire::{self, Message, Received};
use crate::error::KernelError;
use crate::names::LinkName;

/// Counts since the creation of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    pub packets: u64,
    pub bytes: u64,
    /// Packets that the device lost because of errors.
    pub errors: u64,
    /// Packets that the kernel dropped, for example because a queue was full.
    pub dropped: u64,
}

/// `struct rtnl_link_stats64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// What this host sends through the device; on a TUN device, what a program reads from it.
    pub sent: DirectionCounters,
    /// What this host receives from the device.
    pub received: DirectionCounters,
}

/// Works in the network namespace of the thread that opened it.
pub struct CounterReader {
    requests: Requests,
}

impl CounterReader {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, KernelError> {
        Ok(Self { requests: Requests::open()? })
    }

    /// `None` if the device does not exist or the kernel does not answer.
    pub async fn of(&mut self, name: LinkName) -> Option<DeviceCounters> {
        let request =
            Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]).text(IFLA_IFNAME, name.as_str());
        let mut found = None;
        self.requests
            .batch(vec![request], 1, |_, message| {
                found = counters(message).or(found);
            })
            .await;
        found
    }
}

fn counters(message: &Received<'_>) -> Option<DeviceCounters> {
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let (_, stats) =
        wire::attrs(message.body, IFINFOMSG).find(|(kind, _)| *kind == IFLA_STATS64)?;
    let number = |index: usize| wire::u64_at(stats, index * size_of::<u64>());
    // The fields alternate between received and sent.
    let direction = |first: usize| {
        Some(DirectionCounters {
            packets: number(first)?,
            bytes: number(first + 2)?,
            errors: number(first + 4)?,
            dropped: number(first + 6)?,
        })
    };
    Some(DeviceCounters { received: direction(0)?, sent: direction(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[tokio::test]
    async fn counters_are_those_of_proc() {
        let mut reader = CounterReader::open().unwrap();
        let name = LinkName::parse("lo").unwrap();
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.send_to(&[0; 1000], receiver.local_addr().unwrap()).unwrap();
        let mut text = String::new();
        std::fs::File::open("/proc/self/net/dev")
            .and_then(|mut file| file.read_to_string(&mut text))
            .unwrap();
        let line = text.lines().find(|line| line.trim().starts_with("lo:"));
        let fields: Vec<u64> = line
            .and_then(|line| line.split_once(':'))
            .map(|(_, numbers)| {
                let numbers = numbers.split_whitespace();
                numbers.map(|number| number.parse().unwrap()).collect()
            })
            .unwrap();
        let now = reader.of(name).await.unwrap();
        for (now, fields) in [(now.received, &fields[..4]), (now.sent, &fields[8..12])] {
            // Other tests send through the device at the same time.
            assert!(now.bytes >= fields[0].max(1000) && now.packets >= fields[1].max(1), "{now:?}");
            assert_eq!((now.errors, now.dropped), (fields[2], fields[3]));
        }
    }
}
