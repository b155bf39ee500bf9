//! Facts about the host's firewalls: the rules and policies that drop pod packets or tunnel packets.

use ipnet::IpNet;
use traffic_rules::reader::{Hook, Stop};
use types::Family;

/// Packets of flannel that an active firewalld accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalld {
    /// The cluster's pod networks whose packets firewalld forwards.
    pub networks: Vec<IpNet>,
    /// Whether firewalld accepts incoming tunnel packets.
    pub tunnel: bool,
}

/// The firewalls of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalls {
    /// The tables of iptables and ip6tables, in each variant that the doctor could list. Packets traverse the tables of all variants of iptables.
    pub tables: Vec<Table>,
    /// The packets that firewalld accepts; `None` if firewalld is not active.
    pub firewalld: Option<Firewalld>,
    /// nftables chains that block pods' packets.
    pub(crate) barriers: Vec<Barrier>,
    /// Rules and policies that drop flannel's packets at hooks that the other fields do not cover.
    pub drops: Vec<Drop>,
}

/// Kind of flannel's packets that a rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// Packets between pods of this node and pods of other nodes.
    Pods,
    /// Tunnel packets that other nodes send to this node.
    TunnelIn,
    /// Tunnel packets that this node sends.
    TunnelOut,
}

/// A rule or a policy that drops flannel's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    /// The kind of packets that the rule or policy drops.
    pub carried: Carried,
    /// The address family of the pod packets, or of the outer packets of the tunnel.
    pub family: Family,
    /// The rule or policy that drops the packets.
    pub stop: Stop,
    /// The hook at which the kernel calls the base chain.
    pub hook: Hook,
    /// The iptables command that manages the table; `None` for an nftables table.
    pub command: Option<String>,
    /// Whether the base chain jumps to chains of network policies after the dropping rule. If network policies follow
    /// the dropping rule, an accept rule before that rule would bypass the policies.
    pub before_policies: bool,
}

/// A rule or a policy that drops packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The rule or the policy.
    pub stop: Stop,
    /// Whether an earlier rule that the doctor does not understand may accept the packets.
    pub doubt: bool,
}

/// The table `filter` of one address family in one variant of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The cluster's pod network of the table's address family.
    pub network: IpNet,
    /// The name of the iptables command, as an operator types it.
    pub command: String,
    /// Whether flannel's rule that jumps to FLANNEL-FWD exists.
    pub jump: bool,
    /// The rules and the policy that drop pod packets in FORWARD, in order.
    pub forward: Vec<Block>,
    /// The number of the last rule in FORWARD that jumps to a chain of network policies.
    pub policies: Option<usize>,
    /// Whether the table contains Docker's chains.
    pub docker: bool,
    /// Whether the firewall ufw is active in the table.
    pub ufw: bool,
    /// The rule or the policy that drops tunnel packets in INPUT.
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

    /// Returns the first rule of FORWARD that drops pod packets.
    pub fn refusal(&self) -> Option<&Block> {
        self.forward.iter().find(|block| !block.stop.is_policy())
    }

    /// Returns the policy of FORWARD, if the policy drops pod packets.
    pub fn policy(&self) -> Option<&Block> {
        self.forward.iter().find(|block| block.stop.is_policy())
    }

    /// Returns whether a rule or the policy of INPUT certainly drops tunnel packets.
    pub(crate) fn is_shut(&self) -> bool {
        self.input.as_ref().is_some_and(|block| !block.doubt)
    }

    /// Returns the rule of INPUT that drops tunnel packets, unless ufw added the rule.
    pub(crate) fn input_refusal(&self) -> Option<&Stop> {
        self.input
            .as_ref()
            .map(|block| &block.stop)
            .filter(|stop| !stop.is_policy() && !stop.chain.starts_with("ufw"))
    }
}

/// An nftables chain on the forward hook that blocks packets of a pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// The family of the nftables table: ip, ip6 or inet.
    pub family: String,
    /// The name of the nftables table.
    pub table: String,
    /// The name of the nftables chain.
    pub chain: String,
    /// The pod network whose packets the chain blocks.
    pub network: IpNet,
    /// Whether a rule blocks the packets; otherwise, the policy of the chain blocks the packets.
    pub by_rule: bool,
    /// The handle of the rule that drops the packets, directly or by a jump to another chain. `None` if chains of network policies follow the rule.
    pub handle: Option<u64>,
    /// Whether an earlier rule that the doctor does not understand may accept the packets.
    pub doubt: bool,
}
