//! The `wireguard` backend: a device for each family or for both, a route for the whole network, and a peer for each node.

mod config;
mod keys;
mod secrets;
pub mod sessions;
#[cfg(test)]
mod tests;
#[cfg(feature = "wireguard-userspace")]
mod userspace;

use crate::backend::{Backend, Datapath, KeyRequests, Overlay, Setup, Takes};
use crate::config_keys::Implementation;
use crate::error::{config_problem, read_lease_data, unannounced_backend, unusable_lease};
use crate::status::StatusSources;
pub use config::{Config, Mode};
use netlink::run_blocking;
use netstate::blackhole;
use netstate::object::route::LINK;
use netstate::{
    Facts, KernelState, Key, LinkKind, LinkSpec, NetlinkKernel, PublicKey, RouteSpec, Scope,
    Underlay, Value, WireguardKernel, WireguardPeer, WireguardSpec,
};
use packet_engine::Counters;
use reconcile::{Announced, Plan};
use secrets::{Files, Secrets};
use serde::Serialize;
use sessions::SessionKernel;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, Peer, PeerRules, RawJson};
use types::profile::{Device, Keys};
use types::wireguard::PRESHARED_VARIABLE;
use types::{Dual, Encapsulation, Family, Problem, Profile, Subnets};

/// The name in the configuration and in leases.
pub const KIND: &str = "wireguard";

pub static PROFILE: Profile = Profile {
    name: KIND,
    devices: &[
        // A TUN device if the packet engine encrypts.
        Device::shared(config::DEVICE, &["wireguard", "tun"]),
        Device {
            name: config::DEVICE_V6,
            is_numbered: false,
            kinds: &["wireguard", "tun"],
            family: Some(Family::V6),
        },
    ],
    overhead: config::OVERHEAD,
    encapsulation: Encapsulation::Udp {
        ports: Dual::Both(config::PORT, config::PORT_V6),
        outer: None,
    },
    encrypts: true,
    shares_address: true,
    keys: Keys { port: Some("ListenPort (ListenPortV6)"), has_mtu: true },
    ..Profile::DEFAULT
};

/// The backend before the node has a lease.
pub struct Wireguard {
    setup: Setup,
    config: Config,
    files: Files,
    /// The announcement reads them from files or creates them.
    secrets: Option<Arc<Secrets>>,
    /// The packet engine encrypts packets, instead of the kernel. For implementation `auto`, the
    /// announcement sets this if the kernel does not support WireGuard.
    userspace: bool,
}

impl Wireguard {
    pub fn new(setup: &Setup) -> Result<Self, Problem> {
        let config = Config::parse(setup.config.backend_config.as_str(), &setup.config.networks)?;
        let files = Files::of(&config, setup);
        if config.preshared.is_some() {
            if setup.refuse_insecure {
                let text = format!(
                    "PSK is readable in the network configuration, and --refuse-insecure is set; name a file on each node instead, by PSKFile in the Backend or by {PRESHARED_VARIABLE}"
                );
                return Err(config_problem("psk-exposed", text));
            }
            tracing::warn!(
                variable = PRESHARED_VARIABLE,
                remedy =
                    "set PSKFile in the Backend, or WIREGUARD_PSK_FILE, to a file on each node",
                "everyone who can read the network configuration knows the PSK in it"
            );
        }
        let userspace = config.implementation == Implementation::Userspace;
        Ok(Self { setup: setup.clone(), config, files, secrets: None, userspace })
    }

    fn datapath_with_sessions(
        kernel: impl WireguardKernel + 'static,
        engines: Vec<(String, Arc<Counters>)>,
    ) -> Datapath {
        let kernel = SessionKernel::new(kernel);
        let tunnels = kernel.status();
        Datapath { kernel: Box::new(kernel), sources: StatusSources { engines, tunnels } }
    }

    /// Fails if the node has no public address of an outer family.
    fn check(&self, underlay: &Underlay) -> Result<(), Problem> {
        let mut needed = self.setup.config.networks.families().filter(|family| {
            self.config.mode == Mode::Separate
                || self.config.mode.required_family() == Some(*family)
        });
        if needed.all(|family| underlay.public.has(family)) {
            return Ok(());
        }
        let Underlay { name, addresses, .. } = underlay;
        let text = format!(
            "wireguard over {name} needs an address for each family that carries packets between nodes, and {name} has {addresses}. Choose another interface with --iface, or another Mode in the Backend"
        );
        Err(Problem::new("underlay-address-missing", text))
    }
}

impl Backend for Wireguard {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        let mut takes = Takes::default();
        for family in self.config.device_families(&self.setup.config.networks) {
            takes.devices.push(self.config.device(family).to_string());
            takes.ports.push(self.config.port(family));
        }
        takes
    }

    fn overlay(&self) -> Option<Overlay> {
        let config = self.config.clone();
        Some(Overlay {
            outer: self.config.outer_family(),
            clear: false,
            ..Overlay::new(KIND, move |underlay, _| config.device_mtu(underlay))
        })
    }

    fn encapsulation(&self) -> Encapsulation {
        let ports = self
            .setup
            .config
            .networks
            .map(|_| self.config.port(Family::V4), |_| self.config.port(Family::V6));
        Encapsulation::Udp { ports, outer: self.config.outer_family() }
    }

    fn identity(&self) -> Option<String> {
        let key = keys::read_key(&self.files.key, self.files.key_links).ok()??;
        Some(key.public().to_string())
    }

    fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, Problem> {
        self.check(underlay)?;
        let kernel_lacks = self.config.implementation == Implementation::Auto
            && !self.userspace
            && !NetlinkKernel::open()?.supports_wireguard()?;
        self.userspace |= kernel_lacks;
        if self.userspace && !cfg!(feature = "wireguard-userspace") {
            let text = "this build has no WireGuard in userspace; set Implementation to kernel in the Backend and load the kernel's module (modprobe wireguard), or install a build with the feature wireguard-userspace";
            return Err(Problem::new("wireguard-userspace-missing", text));
        }
        if kernel_lacks {
            tracing::warn!(
                remedy = "to use the kernel, load its module: modprobe wireguard",
                "the kernel does not support WireGuard; encrypting in userspace"
            );
        }
        let secrets = match &self.secrets {
            Some(secrets) => secrets.clone(),
            None => Arc::new(run_blocking(|| self.files.load(self.config.preshared.clone()))?),
        };
        self.secrets = Some(secrets.clone());
        Ok(announced(&self.config, &self.setup.config.networks, secrets.now().public, underlay.mtu))
    }

    fn hands_over(&self) -> bool {
        self.userspace
    }

    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(Rules { config: self.config.clone(), networks: self.setup.config.networks })
    }

    fn plan(&self, own: Subnets) -> Result<Arc<dyn Plan>, Problem> {
        self.setup.check_families(&own)?;
        Ok(Arc::new(WireguardPlan {
            scope: self.setup.scope(own, Config::devices()),
            config: self.config.clone(),
            secrets: self.secrets.clone().ok_or_else(|| unannounced_backend(KIND))?,
            files: self.files.clone(),
            key_requests: self.setup.key_requests.clone(),
        }))
    }

    #[cfg_attr(not(feature = "wireguard-userspace"), expect(unused_variables))]
    fn datapath(&self, scope: &Scope, underlay: &Underlay) -> Result<Datapath, Problem> {
        #[cfg(feature = "wireguard-userspace")]
        if self.userspace {
            let kernel = userspace::open_kernel(&self.config, &self.setup, &scope.own, underlay)?;
            let engines = kernel.counters();
            return Ok(Self::datapath_with_sessions(kernel, engines));
        }
        Ok(Self::datapath_with_sessions(NetlinkKernel::open()?, Vec::new()))
    }
}

/// The backend data in a lease, in Go flannel's format.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    public_key: String,
    port: u16,
}

/// Unlike in Go flannel, the announced port of each family is the port of the device that carries
/// it.
fn announced(config: &Config, networks: &Subnets, key: PublicKey, underlay_mtu: u32) -> Announced {
    let data =
        |family| RawJson::of(&Data { public_key: key.to_string(), port: config.port(family) });
    Announced {
        backend: KIND.to_owned(),
        data: networks.v4().map(|_| data(Family::V4)),
        v6_data: networks.v6().map(|_| data(Family::V6)),
        mtu: config.device_mtu(underlay_mtu),
    }
}

/// The JSON key in the backend data.
const PUBLIC_KEY: &str = "PublicKey";

/// What the backend data of a peer's lease contains.
struct PeerData {
    key: PublicKey,
    port: Option<u16>,
}

impl PeerData {
    fn read(data: &RawJson) -> Result<PeerData, Problem> {
        let (object, text) = read_lease_data(data, PUBLIC_KEY)?;
        let key = PublicKey::parse(&text)
            .ok_or_else(|| unusable_lease("the lease's PublicKey is not 32 bytes in base64"))?;
        if !key.is_usable() {
            return Err(unusable_lease(format!(
                "the lease's PublicKey {key} is of small order, so WireGuard cannot use it"
            )));
        }
        let port: Option<i64> =
            object.read("Port").map_err(|_| unusable_lease("the lease's Port is not a number"))?;
        let port = port.unwrap_or(0);
        let port =
            u16::try_from(port).map_err(|_| unusable_lease(format!("its Port is {port}")))?;
        Ok(PeerData { key, port: Some(port).filter(|port| *port != 0) })
    }
}

/// The data that tells where this node sends a family's packets. If one device serves both
/// families, the lease's IPv4 data takes precedence: in Go flannel's leases, the IPv6 data contains
/// a port on which no program listens.
fn data_for<'a>(config: &Config, attrs: &'a LeaseAttrs, family: Family) -> Option<&'a RawJson> {
    let [v4, v6] = [&attrs.data, &attrs.v6_data]
        .map(|data| data.as_ref().filter(|data| data.as_str() != "null"));
    if config.mode == Mode::Separate { family.pick(v4, v6) } else { v4.or(v6) }
}

/// Even an unusable key. No two leases may have the same one. A node has one public key for both
/// families.
pub(crate) fn identity(attrs: &LeaseAttrs, family: Family) -> Option<String> {
    let data = family.pick(&attrs.data, &attrs.v6_data).as_ref()?;
    let (_, text) = read_lease_data(data, PUBLIC_KEY).ok()?;
    PublicKey::parse(&text).map(|key| key.to_string())
}

struct Rules {
    config: Config,
    networks: Subnets,
}

impl PeerRules for Rules {
    /// A lease needs a public key for at least one of the network's families, no malformed key, and
    /// a public address of the outer family.
    fn accepts(&self, lease: &Lease) -> Result<(), Problem> {
        let Self { config, networks } = self;
        if lease.attrs.backend != KIND {
            return Ok(());
        }
        let (mut usable, mut absent) = (false, false);
        for family in lease.subnets.families().filter(|family| networks.has(*family)) {
            match data_for(config, &lease.attrs, family) {
                Some(data) => {
                    PeerData::read(data)?;
                    usable = true;
                }
                // The other family may be usable by itself. Data that cannot be read is an error, unlike absent data.
                None if config.mode == Mode::Separate => absent = true,
                None => return Err(absent_lease_data()),
            }
        }
        if let Some(family) = config.mode.required_family()
            && lease.attrs.public_for(family).is_none()
        {
            let text = format!(
                "the lease has no public {family} address, over which this network's Mode sends all packets"
            );
            return Err(Problem::new("lease-without-address", text));
        }
        match (usable, absent) {
            (true, _) => Ok(()),
            (_, true) => Err(absent_lease_data()),
            _ => Err(Problem::new(
                "lease-of-other-families",
                "the families of the lease are not those of the network",
            )),
        }
    }

    fn identity(&self, attrs: &LeaseAttrs, family: Family) -> Option<String> {
        identity(attrs, family)
    }
}

fn absent_lease_data() -> Problem {
    Problem::new("lease-data-missing", "the lease has no backend data of its family")
}

struct WireguardPlan {
    scope: Scope,
    config: Config,
    secrets: Arc<Secrets>,
    files: Files,
    key_requests: KeyRequests,
}

impl Plan for WireguardPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Only(KIND)
    }

    fn shares_address(&self) -> bool {
        true
    }

    fn base(&self, facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        for own in self.scope.own.nets() {
            let family = Family::from(own);
            let device = self.config.device(family);
            let kind = LinkKind::Wireguard(WireguardSpec {
                key: Some(self.secrets.now().private.clone()),
                port: self.config.port(family),
            });
            let link = LinkSpec::new(kind, self.config.device_mtu(facts.underlay.mtu));
            state.set_device(device, link, [own]);
        }
        for network in self.scope.networks.nets() {
            let family = Family::from(network);
            let scope = family.pick(LINK, 0);
            let dev = self.config.device(family);
            let route =
                RouteSpec { scope, ..RouteSpec::forwarding(None, dev, self.scope.protocol) };
            // Even if the device is gone, no packet leaves in the clear.
            let drops = blackhole::of_network(&network, self.scope.protocol);
            state.add([route.leading_to(network.trunc()), drops]);
        }
        state
    }

    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)> {
        let family = Family::from(peer.subnet);
        let attrs = &peer.lease.attrs;
        let data = data_for(&self.config, attrs, family).map(PeerData::read);
        let Some(Ok(data)) = data else { return Vec::new() };
        let secrets = self.secrets.now();
        // The kernel has no peer with the device's own key.
        if data.key == secrets.public {
            return Vec::new();
        }
        let Some(address) = self.config.outer(attrs, family, facts.underlay.public) else {
            return Vec::new();
        };
        let endpoint = SocketAddr::new(address, data.port.unwrap_or(self.config.port(family)));
        let device = self.config.device(family);
        let value = WireguardPeer {
            endpoint: Some(endpoint),
            preshared: secrets.preshared.clone(),
            keepalive: self.config.keepalive,
        };
        vec![
            (Key::WireguardPeer(device, data.key), Value::WireguardPeer(Box::new(value))),
            (Key::AllowedIp(device, peer.subnet.trunc()), Value::AllowedIp(data.key)),
        ]
    }

    fn replanned(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(secrets::serve_key_requests(&self.secrets, &self.files, &self.key_requests))
    }

    fn announced(&self, facts: &Facts) -> Announced {
        announced(&self.config, &self.scope.networks, self.secrets.now().public, facts.underlay.mtu)
    }
}
