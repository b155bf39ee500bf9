//! A class of packets, such as all packets between two pods, and their path through the host.

use super::fits::Fits;
use super::model::{Hook, Key, Layer, Name};
use super::ranges::Ranges;
use super::words::{TCP, state};
use types::Family;

/// The possible names of an interface on a packet's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// An empty name means no interface.
    Among(Vec<String>),
    /// An unknown interface, whose name begins with none of the prefixes.
    UnknownBut(&'static [&'static str]),
}

impl Device {
    pub fn named(name: impl Into<String>) -> Self {
        Device::Among(vec![name.into()])
    }

    /// An empty name. For example, packets for this host have no outgoing interface.
    #[must_use]
    pub fn none() -> Self {
        Self::named("")
    }

    pub(super) fn fits(&self, wanted: &Name) -> Fits {
        match (self, wanted) {
            (Device::Among(names), _) => {
                match names.iter().filter(|name| wanted.is(name)).count() {
                    0 => Fits::No,
                    all if all == names.len() => Fits::Yes,
                    _ => Fits::Perhaps,
                }
            }
            (Device::UnknownBut(others), _) => {
                match others.iter().any(|start| wanted.text.starts_with(start)) {
                    true => Fits::No,
                    false if wanted.is_prefix && wanted.text.is_empty() => Fits::Yes,
                    false => Fits::Perhaps,
                }
            }
        }
    }
}

/// The reader may know only some bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Unknown bits are 0.
    pub value: u32,
    /// The known bits.
    pub known: u32,
}

impl Mark {
    /// Keeps only the bits that are known and equal in both marks.
    pub(super) fn or(self, other: Self) -> Self {
        let known = self.known & other.known & !(self.value ^ other.value);
        Self { value: self.value & known, known }
    }

    /// The mark after a rule has cleared the bits outside `kept` and inverted those in `inverted`.
    pub(super) fn changed(self, kept: u32, inverted: u32) -> Self {
        let known = self.known | !kept;
        Self { value: ((self.value & kept) ^ inverted) & known, known }
    }
}

/// Through the hooks of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPath {
    /// An arriving packet is for this host.
    Input,
    /// The host forwards an arriving packet.
    Forward,
    /// This host sends the packet.
    Output,
}

/// A class of packets. If a field has several values, the class contains the packets with each of
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub path: HookPath,
    pub family: Family,
    /// The incoming interface.
    pub incoming: Device,
    /// The outgoing interface.
    pub outgoing: Device,
    /// The bridge port on which the packet arrives, if `incoming` is a bridge.
    pub port_in: Option<Device>,
    /// The bridge port on which the packet leaves.
    pub port_out: Option<Device>,
    /// Whether bridges pass frames to the IP hooks (`bridge-nf-call-iptables`), if known.
    pub bridge_calls_ip: Option<bool>,
    /// Source addresses.
    pub source: Ranges,
    /// Destination addresses.
    pub destination: Ranges,
    /// The number in the transport header.
    pub protocol: Ranges,
    /// Only protocols with ports have one.
    pub source_port: Ranges,
    /// Only protocols with ports have one.
    pub destination_port: Ranges,
    pub icmp_type: Ranges,
    pub icmp_code: Ranges,
    /// In bytes, including the IP header.
    pub length: Ranges,
    /// The state of the packet's connection, as a bit of the kernel's state mask.
    pub state: Ranges,
    /// Whether NAT rewrites the addresses of the packet's connection, if known.
    pub translated: Option<bool>,
    /// The mark on arrival.
    pub mark: Mark,
}

impl Packet {
    /// The first packet of a TCP connection between any addresses of the family, from an ephemeral
    /// port to port 31999, with mark 0.
    #[must_use]
    pub fn new(path: HookPath, family: Family, incoming: Device, outgoing: Device) -> Self {
        let every = Ranges::every_address(family);
        Self {
            path,
            family,
            incoming,
            outgoing,
            port_in: None,
            port_out: None,
            bridge_calls_ip: None,
            source: every.clone(),
            destination: every,
            protocol: Ranges::one(TCP),
            source_port: Ranges::span(32768_u32, 60999_u32),
            destination_port: Ranges::one(31999_u32),
            icmp_type: Ranges::span(0_u32, 255_u32),
            icmp_code: Ranges::span(0_u32, 255_u32),
            length: Ranges::span(20_u32, u32::from(u16::MAX)),
            state: Ranges::one(state::NEW),
            translated: Some(false),
            mark: Mark { value: 0, known: u32::MAX },
        }
    }

    /// Two packets with both values of `bridge_calls_ip` if it is unknown and the packet passes a
    /// bridge.
    pub(super) fn by_bridge(&self) -> Vec<Packet> {
        match self.bridge_calls_ip.is_none() && self.port_in.is_some() {
            true => [true, false]
                .map(|calls| Packet { bridge_calls_ip: Some(calls), ..self.clone() })
                .into(),
            false => vec![self.clone()],
        }
    }

    /// The hooks on the packet's path in their order, with the interfaces that rules see at each.
    pub(super) fn stages(&self) -> Vec<Stage> {
        let bridge = Layer::Bridge;
        let none = Device::none();
        let mut stages = self.stages_before_routing();
        match self.path {
            HookPath::Input => stages.push(self.ip_stage(Hook::Input, &self.incoming, &none)),
            HookPath::Forward => {
                stages.push(self.ip_stage(Hook::Forward, &self.incoming, &self.outgoing));
                stages.push(self.ip_stage(Hook::Postrouting, &self.incoming, &self.outgoing));
            }
            HookPath::Output => {
                stages.push(self.ip_stage(Hook::Output, &none, &self.outgoing));
                stages.push(self.ip_stage(Hook::Postrouting, &none, &self.outgoing));
            }
        }
        if let Some(port) = self
            .port_out
            .as_ref()
            .filter(|_| matches!(self.path, HookPath::Forward | HookPath::Output))
        {
            stages.push(self.stage(bridge, Hook::Output, &none, port));
            stages.push(self.stage(bridge, Hook::Postrouting, &none, port));
        }
        stages
    }

    fn stages_before_routing(&self) -> Vec<Stage> {
        let none = Device::none();
        let mut stages = Vec::new();
        if self.path != HookPath::Output {
            stages.push(self.stage(
                Layer::Netdev,
                Hook::Ingress,
                self.port_in.as_ref().unwrap_or(&self.incoming),
                &none,
            ));
        }
        if let Some(port) = &self.port_in {
            stages.push(self.stage(Layer::Bridge, Hook::Prerouting, port, &none));
        }
        let input =
            self.port_in.as_ref().map(|port| self.stage(Layer::Bridge, Hook::Input, port, &none));
        let received = (self.path != HookPath::Output)
            .then(|| self.ip_stage(Hook::Prerouting, &self.incoming, &none));
        // The bridge itself calls the first IP hook.
        let (first, second) =
            if self.bridge_calls() { (received, input) } else { (input, received) };
        stages.extend(first.into_iter().chain(second));
        stages
    }

    fn bridge_calls(&self) -> bool {
        self.bridge_calls_ip == Some(true)
    }

    fn ip_stage(&self, hook: Hook, incoming: &Device, outgoing: &Device) -> Stage {
        self.stage(Layer::of(self.family), hook, incoming, outgoing)
    }

    fn stage(&self, layer: Layer, hook: Hook, incoming: &Device, outgoing: &Device) -> Stage {
        // IP rules see no incoming bridge port if the bridge did not pass the frame to IP. A packet that leaves the bridge has none, and rules never see an outgoing bridge port.
        let port_in = if self.bridge_calls_ip == Some(false) || self.path == HookPath::Output {
            Some(Device::none())
        } else {
            self.port_in.clone()
        };
        Stage { layer, hook, incoming: incoming.clone(), outgoing: outgoing.clone(), port_in }
    }

    /// The numbers that a field of the packets may have; `None` if they are unknown.
    pub(super) fn numbers(&self, key: &Key) -> Option<Ranges> {
        Some(match key {
            Key::Family => Ranges::one(self.family.pick(2_u32, 10)),
            Key::Source => self.source.clone(),
            Key::Destination => self.destination.clone(),
            Key::Protocol => self.protocol.clone(),
            Key::SourcePort => self.source_port.clone(),
            Key::DestinationPort => self.destination_port.clone(),
            Key::IcmpType(_) => self.icmp_type.clone(),
            Key::IcmpCode => self.icmp_code.clone(),
            Key::Length => self.length.clone(),
            Key::Translated => Ranges::one(u32::from(self.translated?)),
            Key::DestinationKind => match self.path {
                HookPath::Forward => Ranges::one(super::words::UNICAST),
                HookPath::Input => Ranges::one(super::words::LOCAL),
                HookPath::Output => return None,
            },
            Key::State
            | Key::Mark(_)
            | Key::Incoming
            | Key::Outgoing
            | Key::PortIn
            | Key::PortOut
            | Key::Bridged
            | Key::Unknown => return None,
        })
    }

    /// The packets whose field is in `by`, and the others. `None` if either class is empty, or if
    /// the class has no set of numbers for the field.
    pub(super) fn divided(&self, key: &Key, by: &Ranges) -> Option<[Packet; 2]> {
        let mut parts = [self.clone(), self.clone()];
        for (part, by) in parts.iter_mut().zip([by.clone(), by.inverted()]) {
            let numbers = part.field(key)?;
            *numbers = numbers.and(&by);
            if numbers.is_empty() {
                return None;
            }
        }
        Some(parts)
    }

    fn field(&mut self, key: &Key) -> Option<&mut Ranges> {
        match key {
            Key::Source => Some(&mut self.source),
            Key::Destination => Some(&mut self.destination),
            Key::Protocol => Some(&mut self.protocol),
            Key::SourcePort => Some(&mut self.source_port),
            Key::DestinationPort => Some(&mut self.destination_port),
            Key::IcmpType(_) => Some(&mut self.icmp_type),
            Key::IcmpCode => Some(&mut self.icmp_code),
            Key::Length => Some(&mut self.length),
            _ => None,
        }
    }
}

/// A hook on a packet's path, with the interfaces that rules see there.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// The family of the tables whose chains use the hook.
    pub layer: Layer,
    pub hook: Hook,
    pub incoming: Device,
    pub outgoing: Device,
    /// The incoming bridge port that IP rules see; `None` if it is unknown.
    pub port_in: Option<Device>,
}
