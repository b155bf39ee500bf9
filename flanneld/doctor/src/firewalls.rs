//! What is known of the host's firewalls: what of them drops pods' packets, and the tunnel's.

use ipnet::IpNet;
use traffic_rules::reader::{Hook, Stop};
use types::Family;

/// What an active firewalld accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalld {
    /// The networks of ours whose packets it forwards.
    pub networks: Vec<IpNet>,
    /// Whether it lets the tunnel's packets in.
    pub tunnel: bool,
}

/// The firewalls of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalls {
    /// iptables and ip6tables, each variant that could be listed: packets traverse all of them.
    pub tables: Vec<Table>,
    /// firewalld; `None` if it is not active.
    pub firewalld: Option<Firewalld>,
    /// nftables chains that block pods' packets.
    pub(crate) barriers: Vec<Barrier>,
    /// What drops flannel's packets elsewhere.
    pub drops: Vec<Drop>,
}

/// Which of flannel's packets are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// Those between pods of this node and of others.
    Pods,
    /// Those of the tunnel that other nodes send to this one.
    TunnelIn,
    /// Those of the tunnel that this node sends.
    TunnelOut,
}

/// A rule or a policy that drops packets of flannel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    /// Which packets.
    pub carried: Carried,
    /// The address family of the packets, or of those that carry them.
    pub family: Family,
    /// Where.
    pub stop: Stop,
    /// The hook at which the kernel calls the chain.
    pub hook: Hook,
    /// The command of iptables for the table; `None` for a table of nft.
    pub command: Option<String>,
    /// Whether chains of network policies come after it in the chain that the kernel called: a rule before it would let packets pass by them.
    pub before_policies: bool,
}

/// A rule or a policy that drops packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The rule or the policy.
    pub stop: Stop,
    /// Whether a rule before it may let them pass: it is not understood.
    pub doubt: bool,
}

/// One family and variant of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The network of that family.
    pub network: IpNet,
    /// The command that an operator types.
    pub command: String,
    /// Whether our jump is present.
    pub jump: bool,
    /// What drops pods' packets in FORWARD, in order.
    pub forward: Vec<Block>,
    /// The number of the last rule of FORWARD that jumps to a chain of network policies.
    pub policies: Option<usize>,
    /// Whether Docker's chains are present.
    pub docker: bool,
    /// Whether ufw is active.
    pub ufw: bool,
    /// What drops the tunnel's packets in INPUT.
    pub input: Option<Block>,
}

impl Table {
    /// Returns a table without rules.
    pub fn empty(network: &IpNet, command: &str) -> Self {
        Self {
            network: *network,
            command: command.to_owned(),
            jump: false,
            forward: Vec::new(),
            policies: None,
            docker: false,
            ufw: false,
            input: None,
        }
    }

    /// The first rule that drops pods' packets.
    pub fn refusal(&self) -> Option<&Block> {
        self.forward.iter().find(|block| !block.stop.is_policy())
    }

    /// The policy, if it drops pods' packets.
    pub fn policy(&self) -> Option<&Block> {
        self.forward.iter().find(|block| block.stop.is_policy())
    }

    /// Whether its rules reject packets of the tunnel, for certain.
    pub(crate) fn is_shut(&self) -> bool {
        self.input.as_ref().is_some_and(|block| !block.doubt)
    }

    /// The rule, not one of ufw's, that drops the tunnel's packets.
    pub(crate) fn input_refusal(&self) -> Option<&Stop> {
        self.input
            .as_ref()
            .map(|block| &block.stop)
            .filter(|stop| !stop.is_policy() && !stop.chain.starts_with("ufw"))
    }
}

/// An nftables chain on the forward hook that blocks packets of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// The family of the table: ip, ip6 or inet.
    pub family: String,
    /// The name of the table.
    pub table: String,
    /// The name of the chain.
    pub chain: String,
    /// The network whose packets it drops.
    pub network: IpNet,
    /// Whether a rule rejects the packets, rather than the policy.
    pub by_rule: bool,
    /// The handle of the chain's own rule that does or leads there, where no network policies come behind it.
    pub handle: Option<u64>,
    /// Whether a rule before the verdict may accept packets of the network: it is not understood.
    pub doubt: bool,
}
