//! Constants of the kernel's netlink interface, with the names in the kernel's header files.

/// linux/rtnetlink.h: message types.
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_GETROUTE: u16 = 26;
pub(super) const RTM_NEWNEIGH: u16 = 28;
pub(super) const RTM_DELNEIGH: u16 = 29;
pub(super) const RTM_GETNEIGH: u16 = 30;
pub(super) const RTM_NEWRULE: u16 = 32;
pub(super) const RTM_GETRULE: u16 = 34;
/// Add this to the message type of an addition to get the deletion.
pub(super) const DELETION: u16 = 1;

/// linux/rtnetlink.h: notification groups.
pub(super) const RTMGRP_LINK: u32 = 0x1;
pub(super) const RTMGRP_NEIGH: u32 = 0x4;
pub(super) const RTMGRP_IPV4_IFADDR: u32 = 0x10;
pub(super) const RTMGRP_IPV4_ROUTE: u32 = 0x40;
pub(super) const RTMGRP_IPV6_IFADDR: u32 = 0x100;
pub(super) const RTMGRP_IPV6_ROUTE: u32 = 0x400;

/// linux/netlink.h: control messages.
pub(super) const NLMSG_NOOP: u16 = 1;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
/// linux/netlink.h: message flags, and flags of requests that add objects.
pub(super) const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(super) const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLM_F_REPLACE: u16 = 0x100;
pub(super) const NLM_F_EXCL: u16 = 0x200;
pub(super) const NLM_F_CREATE: u16 = 0x400;

/// linux/socket.h: address families. FDB entries are neighbours of family AF_BRIDGE.
pub(super) const AF_INET: u8 = 2;
pub(super) const AF_BRIDGE: u8 = 7;
pub(super) const AF_INET6: u8 = 10;

/// linux/if_link.h: link attributes.
pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
pub(super) const IFLA_MASTER: u16 = 10;
pub(super) const IFLA_TXQLEN: u16 = 13;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_STATS64: u16 = 23;
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
pub(super) const IFLA_AF_SPEC: u16 = 26;
pub(super) const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub(super) const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub(super) const IFLA_INET6_CONF: u16 = 2;
pub(super) const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub(super) const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
/// linux/ipv6.h: the index of accept_ra in IFLA_INET6_CONF.
pub(super) const DEVCONF_ACCEPT_RA: usize = 3;
/// linux/if.h.
pub(super) const IFF_UP: u32 = 1;
pub(super) const IFF_LOOPBACK: u32 = 8;
/// LOOPBACK_IFINDEX.
pub(super) const LOOPBACK: u32 = 1;
pub(super) const IFF_NOARP: u32 = 0x80;
pub(super) const IFF_LOWER_UP: u32 = 0x10000;

/// linux/if_link.h: attributes of a bridge port.
pub(super) const IFLA_BRPORT_MCAST_FLOOD: u16 = 27;
pub(super) const IFLA_BRPORT_BCAST_FLOOD: u16 = 30;

/// linux/veth.h: the properties of the veth pair's second end.
pub(super) const VETH_INFO_PEER: u16 = 1;

/// linux/if_link.h: vxlan link attributes.
pub(super) const IFLA_VXLAN_ID: u16 = 1;
pub(super) const IFLA_VXLAN_LINK: u16 = 3;
pub(super) const IFLA_VXLAN_LOCAL: u16 = 4;
pub(super) const IFLA_VXLAN_LEARNING: u16 = 7;
pub(super) const IFLA_VXLAN_PORT: u16 = 15;
pub(super) const IFLA_VXLAN_LOCAL6: u16 = 17;
pub(super) const IFLA_VXLAN_UDP_ZERO_CSUM6_TX: u16 = 19;
pub(super) const IFLA_VXLAN_UDP_ZERO_CSUM6_RX: u16 = 20;
pub(super) const IFLA_VXLAN_GBP: u16 = 23;

/// linux/if_tunnel.h: attributes of IP tunnels.
pub(super) const IFLA_IPTUN_LOCAL: u16 = 2;
pub(super) const IFLA_IPTUN_REMOTE: u16 = 3;
pub(super) const IFLA_IPTUN_TTL: u16 = 4;
pub(super) const IFLA_IPTUN_PROTO: u16 = 9;
pub(super) const IFLA_IPTUN_PMTUDISC: u16 = 10;

/// linux/if_addr.h: address attributes and flags.
pub(super) const IFA_ADDRESS: u16 = 1;
pub(super) const IFA_LOCAL: u16 = 2;
pub(super) const IFA_FLAGS: u16 = 8;
pub(super) const IFA_F_NODAD: u8 = 2;
pub(super) const IFA_F_TEMPORARY: u32 = 0x01;
pub(super) const IFA_F_OPTIMISTIC: u32 = 0x04;
pub(super) const IFA_F_DADFAILED: u32 = 0x08;
pub(super) const IFA_F_DEPRECATED: u32 = 0x20;
pub(super) const IFA_F_TENTATIVE: u32 = 0x40;
pub(super) const IFA_F_PERMANENT: u32 = 0x80;

/// linux/neighbour.h: neighbour attributes, states and flags.
pub(super) const NDA_DST: u16 = 1;
pub(super) const NDA_LLADDR: u16 = 2;
pub(super) const NDA_IFINDEX: u16 = 8;
pub(super) const NDA_PROTOCOL: u16 = 12;
pub(super) const NUD_INCOMPLETE: u16 = 0x01;
pub(super) const NUD_REACHABLE: u16 = 0x02;
pub(super) const NUD_STALE: u16 = 0x04;
pub(super) const NUD_DELAY: u16 = 0x08;
pub(super) const NUD_PROBE: u16 = 0x10;
pub(super) const NUD_FAILED: u16 = 0x20;
pub(super) const NUD_NOARP: u16 = 0x40;
pub(super) const NUD_PERMANENT: u16 = 0x80;
pub(super) const NTF_SELF: u8 = 2;
pub(super) const NTF_EXT_LEARNED: u8 = 0x10;

/// linux/rtnetlink.h: route attributes.
pub(super) const RTA_DST: u16 = 1;
pub(super) const RTA_SRC: u16 = 2;
pub(super) const RTA_IIF: u16 = 3;
pub(super) const RTA_OIF: u16 = 4;
pub(super) const RTA_GATEWAY: u16 = 5;
pub(super) const RTA_PRIORITY: u16 = 6;
pub(super) const RTA_PREFSRC: u16 = 7;
pub(super) const RTA_MULTIPATH: u16 = 9;
pub(super) const RTA_TABLE: u16 = 15;
pub(super) const RTA_VIA: u16 = 18;
/// struct rtvia: offset in bytes of the address, after the family.
pub(super) const RTVIA_ADDR: usize = 2;
pub(super) const RT_TABLE_MAIN: u8 = 254;
pub(super) const RTPROT_KERNEL: u8 = 2;
pub(super) const RTN_UNSPEC: u8 = 0;
pub(super) const RTN_UNICAST: u8 = 1;
pub(super) const RTN_BLACKHOLE: u8 = 6;
pub(super) const RTN_UNREACHABLE: u8 = 7;
pub(super) const RTN_PROHIBIT: u8 = 8;
pub(super) const RT_SCOPE_NOWHERE: u8 = 255;
pub(super) const RTNH_F_ONLINK: u32 = 4;
pub(super) const RTM_F_CLONED: u32 = 0x200;
/// linux/rtnetlink.h: flags with which a route lookup returns the routing table, and the matched
/// route instead of the resolved path.
pub(super) const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
pub(super) const RTM_F_FIB_MATCH: u32 = 0x2000;

/// linux/fib_rules.h: policy routing rules.
pub(super) const FIB_RULE: usize = 12;
pub(super) const FIB_RULE_INVERT: u32 = 0x2;
pub(super) const FRA_DST: u16 = 1;
pub(super) const FRA_SRC: u16 = 2;
pub(super) const FRA_IIFNAME: u16 = 3;
pub(super) const FRA_PRIORITY: u16 = 6;
pub(super) const FRA_FWMARK: u16 = 10;
pub(super) const FRA_FWMASK: u16 = 16;
pub(super) const FRA_TABLE: u16 = 15;
pub(super) const FRA_OIFNAME: u16 = 17;
pub(super) const FRA_UID_RANGE: u16 = 20;
pub(super) const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub(super) const FRA_L3MDEV: u16 = 19;
pub(super) const FRA_IP_PROTO: u16 = 22;
pub(super) const FRA_SPORT_RANGE: u16 = 23;
pub(super) const FRA_DPORT_RANGE: u16 = 24;
pub(super) const FR_ACT_TO_TBL: u8 = 1;
pub(super) const FR_ACT_BLACKHOLE: u8 = 6;
pub(super) const FR_ACT_PROHIBIT: u8 = 8;

/// linux/genetlink.h: the control family, which returns the numeric identifiers of families.
pub(super) const GENL_ID_CTRL: u16 = 16;
pub(super) const CTRL_CMD_GETFAMILY: u8 = 3;
pub(super) const CTRL_ATTR_FAMILY_ID: u16 = 1;
pub(super) const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// linux/wireguard.h: commands, attributes and flags.
pub(super) const WG_GENL_NAME: &str = "wireguard";
pub(super) const WG_GENL_VERSION: u8 = 1;
pub(super) const WG_CMD_GET_DEVICE: u8 = 0;
pub(super) const WG_CMD_SET_DEVICE: u8 = 1;
pub(super) const WGDEVICE_A_IFINDEX: u16 = 1;
pub(super) const WGDEVICE_A_PRIVATE_KEY: u16 = 3;
pub(super) const WGDEVICE_A_LISTEN_PORT: u16 = 6;
pub(super) const WGDEVICE_A_PEERS: u16 = 8;
pub(super) const WGPEER_A_PUBLIC_KEY: u16 = 1;
pub(super) const WGPEER_A_PRESHARED_KEY: u16 = 2;
pub(super) const WGPEER_A_FLAGS: u16 = 3;
pub(super) const WGPEER_A_ENDPOINT: u16 = 4;
pub(super) const WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL: u16 = 5;
pub(super) const WGPEER_A_LAST_HANDSHAKE_TIME: u16 = 6;
pub(super) const WGPEER_A_RX_BYTES: u16 = 7;
pub(super) const WGPEER_A_TX_BYTES: u16 = 8;
pub(super) const WGPEER_A_ALLOWEDIPS: u16 = 9;
pub(super) const WGPEER_F_REMOVE_ME: u32 = 1;
pub(super) const WGPEER_F_UPDATE_ONLY: u32 = 4;
pub(super) const WGALLOWEDIP_A_FAMILY: u16 = 1;
pub(super) const WGALLOWEDIP_A_IPADDR: u16 = 2;
pub(super) const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;

/// linux/rtnetlink.h and other header files: the lengths of the fixed headers.
pub(super) const IFINFOMSG: usize = 16;
pub(super) const IFADDRMSG: usize = 8;
pub(super) const NDMSG: usize = 12;
pub(super) const RTMSG: usize = 12;
pub(super) const RTNEXTHOP: usize = 8;
pub(super) const GENLMSG: usize = 4;
