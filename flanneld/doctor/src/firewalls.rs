//! Facts about the host's firewalls: the rules and policies that drop pod packets or tunnel packets.

use ipnet::IpNet;
use traffic_rules::reader::{Hook, Stop};
use types::Family;

/// What an active firewalld accepts of flannel's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalld {
    /// The pod networks whose packets it forwards.
    pub networks: Vec<IpNet>,
    /// It accepts incoming tunnel packets.
    pub tunnel: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalls {
    /// iptables and ip6tables, in each variant that the doctor could list. Packets traverse the tables of all variants.
    pub tables: Vec<Table>,
    /// `None` if firewalld is not active.
    pub firewalld: Option<Firewalld>,
    /// nftables chains that block pods' packets.
    pub(crate) barriers: Vec<Barrier>,
    /// What drops flannel's packets at hooks that the other fields do not cover.
    pub drops: Vec<Drop>,
}

/// Which of flannel's packets a rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// Between pods of this node and pods of other nodes.
    Pods,
    /// Tunnel packets that other nodes send to this node.
    TunnelIn,
    /// Tunnel packets that this node sends.
    TunnelOut,
}

/// A rule or a policy that drops flannel's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drop {
    pub carried: Carried,
    /// Of the pod packets, or of the outer packets of the tunnel.
    pub family: Family,
    pub stop: Stop,
    /// Where the kernel calls the base chain.
    pub hook: Hook,
    /// The iptables command that manages the table; `None` for an nftables table.
    pub command: Option<String>,
    /// The base chain jumps to chains of network policies after the dropping rule. An accept rule before it would then bypass the policies.
    pub before_policies: bool,
}

/// A rule or a policy that drops packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub stop: Stop,
    /// An earlier rule that the doctor does not understand may accept the packets.
    pub doubt: bool,
}

/// The table `filter` of one family in one variant of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The pod network of the table's family.
    pub network: IpNet,
    /// The iptables command, as an operator types it.
    pub command: String,
    /// flannel's rule that jumps to FLANNEL-FWD exists.
    pub jump: bool,
    /// What drops pod packets in FORWARD, in order.
    pub forward: Vec<Block>,
    /// The number of the last rule in FORWARD that jumps to a chain of network policies.
    pub policies: Option<usize>,
    /// The table contains Docker's chains.
    pub docker: bool,
    /// ufw is active in the table.
    pub ufw: bool,
    /// What drops tunnel packets in INPUT.
    pub input: Option<Block>,
}

impl Table {
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

    /// The first rule of FORWARD that drops pod packets.
    pub fn refusal(&self) -> Option<&Block> {
        self.forward.iter().find(|block| !block.stop.is_policy())
    }

    /// The policy of FORWARD, if it drops pod packets.
    pub fn policy(&self) -> Option<&Block> {
        self.forward.iter().find(|block| block.stop.is_policy())
    }

    /// A rule or the policy of INPUT certainly drops tunnel packets.
    pub(crate) fn is_shut(&self) -> bool {
        self.input.as_ref().is_some_and(|block| !block.doubt)
    }

    /// The rule of INPUT that drops tunnel packets, unless it is ufw's.
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
    /// ip, ip6 or inet.
    pub family: String,
    pub table: String,
    pub chain: String,
    /// The pod network whose packets the chain blocks.
    pub network: IpNet,
    /// A rule blocks the packets, not the policy of the chain.
    pub by_rule: bool,
    /// Of the rule that drops the packets, directly or by a jump to another chain. `None` if chains of network policies follow the rule.
    pub handle: Option<u64>,
    /// An earlier rule that the doctor does not understand may accept the packets.
    pub doubt: bool,
}
