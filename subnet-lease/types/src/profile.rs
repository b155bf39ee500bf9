//! Profiles of backends: properties that are available without a running backend. The daemon, the options, the
//! doctor, the tools and the docs use the profiles.
//!
//! Each backend defines its profile in its own file. The registry of the backends lists the profiles. The code of
//! flanneld and flannelctl does not branch on the name of a backend.

use crate::encapsulation::Encapsulation;
use crate::family::Family;

/// Properties of a backend that are available without a running backend.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name of the backend in the network configuration.
    pub name: &'static str,
    /// Devices that the backend creates on a node.
    pub devices: &'static [Device],
    /// Number of bytes that the backend adds to a packet.
    pub overhead: Overhead,
    /// Encapsulation of pod packets, with the default ports.
    pub encapsulation: Encapsulation,
    /// Encapsulation that programs assume if only the backend's devices are known; `None` if the devices do not determine the encapsulation.
    pub seen_as: Option<Encapsulation>,
    /// Whether the backend carries packets of pods. If the field is false, another mechanism carries the packets of pods.
    pub carries: bool,
    /// Whether the backend encrypts and authenticates packets of pods between the nodes.
    pub encrypts: bool,
    /// Whether the underlay must reach all nodes without a gateway.
    pub needs_links: bool,
    /// Whether nodes may share one public address, because the backend distinguishes nodes by another property.
    pub shares_address: bool,
    /// Keys of the backend's `Backend` object that appear in messages to the user.
    pub keys: Keys,
}

/// A device of a backend.
#[derive(Debug, PartialEq, Eq)]
pub struct Device {
    /// Name of the device, or the part of the name before the VNI.
    pub name: &'static str,
    /// Whether the device's name ends with the VNI.
    pub is_numbered: bool,
    /// Link kinds that the kernel may report for the device. The first link kind is the kernel's own implementation.
    pub kinds: &'static [&'static str],
    /// Family whose packets the device carries; `None` if the device carries both families.
    pub family: Option<Family>,
}

/// Number of bytes that a backend adds to a packet, by the family of the outer packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Over IPv4.
    pub v4: u32,
    /// Over IPv6.
    pub v6: u32,
}

/// Keys of a `Backend` object in the network configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Keys {
    /// Key of the UDP port.
    pub port: Option<&'static str>,
    /// Whether the object has the key `MTU`.
    pub has_mtu: bool,
}

impl Profile {
    /// Returns the first device that can have the given name.
    pub fn device(&self, name: &str) -> Option<&'static Device> {
        self.devices.iter().find(|device| device.is_named(name))
    }

    /// Returns the device for the packets of a family. If the families may share one device or have separate devices,
    /// the encapsulation determines the device. The function returns `None` if the device is unknown.
    pub fn device_of(
        &self,
        family: Family,
        encapsulation: Option<Encapsulation>,
    ) -> Option<&'static Device> {
        let own = self.devices.iter().find(|device| device.family == Some(family));
        let shared = self.devices.iter().find(|device| device.family.is_none());
        match (own, shared) {
            (Some(own), Some(shared)) => {
                Some(if encapsulation?.outer().is_none() { own } else { shared })
            }
            (own, shared) => own.or(shared),
        }
    }
}

impl Device {
    /// Creates a device with a fixed name that carries packets of all families.
    pub const fn shared(name: &'static str, kinds: &'static [&'static str]) -> Self {
        Device { name, is_numbered: false, kinds, family: None }
    }

    /// Returns the name of the device; `None` if the name contains the VNI and the VNI is unknown.
    pub fn named(&self, vni: Option<u32>) -> Option<String> {
        if self.is_numbered {
            vni.map(|vni| format!("{}{vni}", self.name))
        } else {
            Some(self.name.to_owned())
        }
    }

    /// Returns whether the device can have the given name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        if self.is_numbered { self.vni_in(name).is_some() } else { self.name == name }
    }

    /// Returns the VNI from a device name; `None` if the name cannot belong to this device.
    pub fn vni_in(&self, name: &str) -> Option<u32> {
        let number = name.strip_prefix(self.name).filter(|_| self.is_numbered)?;
        number.parse().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

impl Overhead {
    /// Creates an overhead with the same number of bytes for both families.
    pub const fn of_both(bytes: u32) -> Self {
        Self { v4: bytes, v6: bytes }
    }

    /// Returns the overhead for outer packets of a family.
    pub fn over(self, family: Family) -> u32 {
        family.pick(self.v4, self.v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dual::Dual;

    const TWO: Profile = Profile {
        name: "two",
        devices: &[
            Device::shared("dev", &["a"]),
            Device {
                name: "dev-v6.",
                is_numbered: true,
                kinds: &["a", "b"],
                family: Some(Family::V6),
            },
        ],
        overhead: Overhead { v4: 1, v6: 2 },
        encapsulation: Encapsulation::udp(7),
        seen_as: None,
        carries: true,
        encrypts: false,
        needs_links: false,
        shares_address: false,
        keys: Keys { port: None, has_mtu: false },
    };

    #[test]
    fn device_is_found_by_its_name_alone() {
        let named = |name| TWO.device(name).map(|device| device.name);
        assert_eq!((named("dev"), named("dev-v6.7")), (Some("dev"), Some("dev-v6.")));
        for other in ["dev-v6.", "dev-v6.+7", "dev-v6.7x", "dev1", "dev-v6.99999999999", ""] {
            assert_eq!(named(other), None, "{other}");
        }
        assert_eq!(TWO.devices[1].named(Some(7)).as_deref(), Some("dev-v6.7"));
        assert_eq!(
            (TWO.devices[1].named(None), TWO.devices[0].named(None)),
            (None, Some("dev".to_owned()))
        );
    }

    #[test]
    fn family_has_a_device_of_its_own_unless_one_tunnel_serves_all() {
        let of = |family, outer| {
            TWO.device_of(family, Some(Encapsulation::Udp { ports: Dual::Both(1, 2), outer }))
                .map(|device| device.name)
        };
        assert_eq!(
            (of(Family::V6, None), of(Family::V6, Some(Family::V4))),
            (Some("dev-v6."), Some("dev"))
        );
        assert_eq!(of(Family::V4, None), Some("dev"));
        assert_eq!(TWO.device_of(Family::V6, None), None, "no device without an encapsulation");
    }
}
