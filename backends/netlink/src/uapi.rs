//! Constants of the kernel's netlink interface, with the names in the kernel's header files.

pub use libc::{
    IFA_ADDRESS, IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_OPTIMISTIC, IFA_F_PERMANENT,
    IFA_F_TEMPORARY, IFA_F_TENTATIVE, IFA_FLAGS, IFA_LOCAL, IFLA_ADDRESS, IFLA_AF_SPEC,
    IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND,
    IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_STATS64, IFLA_TXQLEN, NDA_DST, NDA_IFINDEX,
    NDA_LLADDR, NTF_EXT_LEARNED, NTF_SELF, NUD_DELAY, NUD_FAILED, NUD_INCOMPLETE, NUD_NOARP,
    NUD_PERMANENT, NUD_PROBE, NUD_REACHABLE, NUD_STALE, RT_SCOPE_NOWHERE, RTA_DST, RTA_GATEWAY,
    RTA_IIF, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_SRC, RTA_TABLE, RTA_VIA,
    RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_F_CLONED, RTM_F_FIB_MATCH,
    RTM_F_LOOKUP_TABLE, RTM_GETADDR, RTM_GETLINK, RTM_GETNEIGH, RTM_GETROUTE, RTM_GETRULE,
    RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWROUTE, RTM_NEWRULE, RTMGRP_IPV4_IFADDR,
    RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE, RTMGRP_LINK, RTMGRP_NEIGH,
    RTN_BLACKHOLE, RTN_PROHIBIT, RTN_UNICAST, RTN_UNREACHABLE, RTN_UNSPEC, RTPROT_KERNEL,
};
pub use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};

/// Add this to the message type of an addition to get the deletion.
pub const DELETION: u16 = 1;

/// linux/netlink.h: control messages.
pub const NLMSG_NOOP: u16 = 1;
pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;
/// linux/netlink.h: message flags, and flags of requests that add objects.
pub const NLM_F_REQUEST: u16 = 1;
pub const NLM_F_ACK: u16 = 4;
pub const NLM_F_DUMP_INTR: u16 = 0x10;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_REPLACE: u16 = 0x100;
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_CREATE: u16 = 0x400;

/// linux/socket.h: address families. FDB entries are neighbours of family AF_BRIDGE.
pub const AF_INET: u8 = 2;
pub const AF_BRIDGE: u8 = 7;
pub const AF_INET6: u8 = 10;

/// linux/if_link.h: attributes of a link's IPv6.
pub const IFLA_INET6_CONF: u16 = 2;
pub const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
/// linux/ipv6.h: the index of accept_ra in IFLA_INET6_CONF.
pub const DEVCONF_ACCEPT_RA: usize = 3;
/// linux/if.h.
pub const IFF_UP: u32 = 1;
pub const IFF_LOOPBACK: u32 = 8;
/// LOOPBACK_IFINDEX.
pub const LOOPBACK: u32 = 1;
pub const IFF_NOARP: u32 = 0x80;
pub const IFF_LOWER_UP: u32 = 0x10000;

/// linux/if_link.h: attributes of a bridge port.
pub const IFLA_BRPORT_MCAST_FLOOD: u16 = 27;
pub const IFLA_BRPORT_BCAST_FLOOD: u16 = 30;

/// linux/veth.h: the properties of the veth pair's second end.
pub const VETH_INFO_PEER: u16 = 1;

/// linux/if_link.h: vxlan link attributes.
pub const IFLA_VXLAN_ID: u16 = 1;
pub const IFLA_VXLAN_LINK: u16 = 3;
pub const IFLA_VXLAN_LOCAL: u16 = 4;
pub const IFLA_VXLAN_LEARNING: u16 = 7;
pub const IFLA_VXLAN_PORT: u16 = 15;
pub const IFLA_VXLAN_LOCAL6: u16 = 17;
pub const IFLA_VXLAN_UDP_ZERO_CSUM6_TX: u16 = 19;
pub const IFLA_VXLAN_UDP_ZERO_CSUM6_RX: u16 = 20;
pub const IFLA_VXLAN_GBP: u16 = 23;

/// linux/if_tunnel.h: attributes of IP tunnels.
pub const IFLA_IPTUN_LOCAL: u16 = 2;
pub const IFLA_IPTUN_REMOTE: u16 = 3;
pub const IFLA_IPTUN_TTL: u16 = 4;
pub const IFLA_IPTUN_PROTO: u16 = 9;
pub const IFLA_IPTUN_PMTUDISC: u16 = 10;

/// linux/if_addr.h.
pub const IFA_F_NODAD: u8 = 2;

/// linux/neighbour.h.
pub const NDA_PROTOCOL: u16 = 12;

/// struct rtvia: offset in bytes of the address, after the family.
pub const RTVIA_ADDR: usize = 2;
pub const RTNH_F_ONLINK: u32 = 4;
/// The predefined routing tables. Their numbers fit into rtm_table, but others need RTA_TABLE.
pub const RT_TABLE_DEFAULT: u32 = 253;
pub const RT_TABLE_MAIN: u32 = 254;
pub const RT_TABLE_LOCAL: u32 = 255;

/// linux/fib_rules.h: policy routing rules.
pub const FIB_RULE: usize = 12;
pub const FIB_RULE_INVERT: u32 = 0x2;
pub const FRA_DST: u16 = 1;
pub const FRA_SRC: u16 = 2;
pub const FRA_IIFNAME: u16 = 3;
pub const FRA_PRIORITY: u16 = 6;
pub const FRA_FWMARK: u16 = 10;
pub const FRA_FWMASK: u16 = 16;
pub const FRA_TABLE: u16 = 15;
pub const FRA_OIFNAME: u16 = 17;
pub const FRA_UID_RANGE: u16 = 20;
pub const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub const FRA_L3MDEV: u16 = 19;
pub const FRA_IP_PROTO: u16 = 22;
pub const FRA_SPORT_RANGE: u16 = 23;
pub const FRA_DPORT_RANGE: u16 = 24;
pub const FR_ACT_TO_TBL: u8 = 1;
pub const FR_ACT_BLACKHOLE: u8 = 6;
pub const FR_ACT_PROHIBIT: u8 = 8;

/// linux/genetlink.h: the control family, which returns the numeric identifiers of families.
pub const GENL_ID_CTRL: u16 = 16;
pub const CTRL_CMD_GETFAMILY: u8 = 3;
pub const CTRL_ATTR_FAMILY_ID: u16 = 1;
pub const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// linux/wireguard.h: commands, attributes and flags.
pub const WG_GENL_NAME: &str = "wireguard";
pub const WG_GENL_VERSION: u8 = 1;
pub const WG_CMD_GET_DEVICE: u8 = 0;
pub const WG_CMD_SET_DEVICE: u8 = 1;
pub const WGDEVICE_A_IFINDEX: u16 = 1;
pub const WGDEVICE_A_PRIVATE_KEY: u16 = 3;
pub const WGDEVICE_A_LISTEN_PORT: u16 = 6;
pub const WGDEVICE_A_PEERS: u16 = 8;
pub const WGPEER_A_PUBLIC_KEY: u16 = 1;
pub const WGPEER_A_PRESHARED_KEY: u16 = 2;
pub const WGPEER_A_FLAGS: u16 = 3;
pub const WGPEER_A_ENDPOINT: u16 = 4;
pub const WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL: u16 = 5;
pub const WGPEER_A_LAST_HANDSHAKE_TIME: u16 = 6;
pub const WGPEER_A_RX_BYTES: u16 = 7;
pub const WGPEER_A_TX_BYTES: u16 = 8;
pub const WGPEER_A_ALLOWEDIPS: u16 = 9;
pub const WGPEER_F_REMOVE_ME: u32 = 1;
pub const WGPEER_F_UPDATE_ONLY: u32 = 4;
pub const WGALLOWEDIP_A_FAMILY: u16 = 1;
pub const WGALLOWEDIP_A_IPADDR: u16 = 2;
pub const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;

/// linux/rtnetlink.h and other header files: the lengths of the fixed headers.
pub const IFINFOMSG: usize = 16;
pub const IFADDRMSG: usize = 8;
pub const NDMSG: usize = 12;
pub const RTMSG: usize = 12;
pub const RTNEXTHOP: usize = 8;
pub const GENLMSG: usize = 4;
