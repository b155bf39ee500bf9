//! Constants of the kernel's netlink interface, with the names in the kernel's header files.

pub use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};

/// linux/rtnetlink.h: message types.
pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_GETLINK: u16 = 18;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
pub const RTM_GETADDR: u16 = 22;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub const RTM_NEWNEIGH: u16 = 28;
pub const RTM_DELNEIGH: u16 = 29;
pub const RTM_GETNEIGH: u16 = 30;
pub const RTM_NEWRULE: u16 = 32;
pub const RTM_GETRULE: u16 = 34;
/// Add this to the message type of an addition to get the deletion.
pub const DELETION: u16 = 1;

/// linux/rtnetlink.h: notification groups.
pub const RTMGRP_LINK: u32 = 0x1;
pub const RTMGRP_NEIGH: u32 = 0x4;
pub const RTMGRP_IPV4_IFADDR: u32 = 0x10;
pub const RTMGRP_IPV4_ROUTE: u32 = 0x40;
pub const RTMGRP_IPV6_IFADDR: u32 = 0x100;
pub const RTMGRP_IPV6_ROUTE: u32 = 0x400;

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

/// linux/if_link.h: link attributes.
pub const IFLA_ADDRESS: u16 = 1;
pub const IFLA_IFNAME: u16 = 3;
pub const IFLA_MTU: u16 = 4;
pub const IFLA_MASTER: u16 = 10;
pub const IFLA_TXQLEN: u16 = 13;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_STATS64: u16 = 23;
pub const IFLA_INFO_KIND: u16 = 1;
pub const IFLA_INFO_DATA: u16 = 2;
pub const IFLA_AF_SPEC: u16 = 26;
pub const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub const IFLA_INFO_SLAVE_DATA: u16 = 5;
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

/// linux/if_addr.h: address attributes and flags.
pub const IFA_ADDRESS: u16 = 1;
pub const IFA_LOCAL: u16 = 2;
pub const IFA_FLAGS: u16 = 8;
pub const IFA_F_NODAD: u8 = 2;
pub const IFA_F_TEMPORARY: u32 = 0x01;
pub const IFA_F_OPTIMISTIC: u32 = 0x04;
pub const IFA_F_DADFAILED: u32 = 0x08;
pub const IFA_F_DEPRECATED: u32 = 0x20;
pub const IFA_F_TENTATIVE: u32 = 0x40;
pub const IFA_F_PERMANENT: u32 = 0x80;

/// linux/neighbour.h: neighbour attributes, states and flags.
pub const NDA_DST: u16 = 1;
pub const NDA_LLADDR: u16 = 2;
pub const NDA_IFINDEX: u16 = 8;
pub const NDA_PROTOCOL: u16 = 12;
pub const NUD_INCOMPLETE: u16 = 0x01;
pub const NUD_REACHABLE: u16 = 0x02;
pub const NUD_STALE: u16 = 0x04;
pub const NUD_DELAY: u16 = 0x08;
pub const NUD_PROBE: u16 = 0x10;
pub const NUD_FAILED: u16 = 0x20;
pub const NUD_NOARP: u16 = 0x40;
pub const NUD_PERMANENT: u16 = 0x80;
pub const NTF_SELF: u8 = 2;
pub const NTF_EXT_LEARNED: u8 = 0x10;

/// linux/rtnetlink.h: route attributes.
pub const RTA_DST: u16 = 1;
pub const RTA_SRC: u16 = 2;
pub const RTA_IIF: u16 = 3;
pub const RTA_OIF: u16 = 4;
pub const RTA_GATEWAY: u16 = 5;
pub const RTA_PRIORITY: u16 = 6;
pub const RTA_PREFSRC: u16 = 7;
pub const RTA_MULTIPATH: u16 = 9;
pub const RTA_TABLE: u16 = 15;
pub const RTA_VIA: u16 = 18;
/// struct rtvia: offset in bytes of the address, after the family.
pub const RTVIA_ADDR: usize = 2;
pub const RT_TABLE_MAIN: u8 = 254;
pub const RTPROT_KERNEL: u8 = 2;
pub const RTN_UNSPEC: u8 = 0;
pub const RTN_UNICAST: u8 = 1;
pub const RTN_BLACKHOLE: u8 = 6;
pub const RTN_UNREACHABLE: u8 = 7;
pub const RTN_PROHIBIT: u8 = 8;
pub const RT_SCOPE_NOWHERE: u8 = 255;
pub const RTNH_F_ONLINK: u32 = 4;
pub const RTM_F_CLONED: u32 = 0x200;
/// linux/rtnetlink.h: flags with which a route lookup returns the routing table, and the matched
/// route instead of the resolved path.
pub const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
pub const RTM_F_FIB_MATCH: u32 = 0x2000;

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
