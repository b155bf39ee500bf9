//! What the daemon's own words tell of the host: they name what it chose, and what it lacked.

use crate::facts::host::{Module, Port, TUNNEL};

/// The kernel modules that a text says are missing.
pub fn missing_modules(text: &str) -> Vec<Module> {
    let names = text.split("needs the kernel module ").skip(1).filter_map(|rest| rest.split([' ', ';', '(', ',']).next());
    let mut found: Vec<Module> = Vec::new();
    for name in names.filter(|name| !name.is_empty()) {
        if found.iter().all(|module| module.name != name) {
            let why = text.split("; ").find(|part| part.contains("needs the kernel module")).unwrap_or(text);
            found.push(Module { name: name.to_owned(), why: why.to_owned() });
        }
    }
    found
}

/// The ways in, as the daemon calls them, with the flag that moves each.
const WAYS_IN: [(&str, &str, &str); 2] = [("the health server", "health endpoints", "healthz-port"), ("the page", "page", "page-port")];

/// The ports that a text says are taken.
pub fn taken_ports(text: &str) -> Vec<Port> {
    let of = |(name, purpose, flag): (&str, &str, &str)| {
        let (_, rest) = text.split_once(&format!("{name} cannot listen on "))?;
        let number = rest.split(": ").next()?.rsplit_once(':')?.1.parse().ok().filter(|_| rest.contains("Address already in use"))?;
        Some(Port { number, udp: false, purpose: purpose.to_owned(), flag: flag.to_owned(), owner: super::ports::owner(number, false) })
    };
    WAYS_IN.into_iter().filter_map(of).chain(taken_tunnel(text)).collect()
}

/// The tunnel's port, where a text says that it is taken: a device of the kernel's or a socket of the packet engine cannot have it.
fn taken_tunnel(text: &str) -> Option<Port> {
    let by_device = || text.split_once(" uses UDP port ")?.1.split_once(", which ")?.0.parse().ok();
    let by_socket = || text.split_once(" is taken by another program")?.0.rsplit_once("UDP ")?.1.rsplit_once(':')?.1.parse().ok();
    let number = by_device().or_else(by_socket)?;
    Some(Port { number, udp: true, purpose: TUNNEL.to_owned(), flag: String::new(), owner: super::ports::owner(number, true) })
}

/// What is wrong with the network configuration, where that is what a text says.
pub fn config_trouble(text: &str) -> Option<&str> {
    text.contains("; set Backend.Type in the network configuration").then_some(text)
}

/// The interface that a daemon chose before it was refused.
pub fn chosen_in(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once("This node chose ")?;
    let (name, rest) = rest.split_once(": ")?;
    let why = rest.split(". Its interfaces").next()?;
    (!name.contains(' ')).then_some((name, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood() {
        let text = "cannot add link flannel.1: Operation not supported (os error 95): Unknown device type; flannel.1 needs the kernel module vxlan (modprobe vxlan; …)";
        let found = missing_modules(text);
        assert_eq!((found.len(), found[0].name.as_str()), (1, "vxlan"));
        assert_eq!(missing_modules("all is well"), []);
        let text = "the health server cannot listen on 0.0.0.0:8471: Address already in use (os error 98); find the process with `ss`";
        assert_eq!(taken_ports(text).iter().map(|port| port.number).collect::<Vec<_>>(), [8471]);
        let text = "the page cannot listen on 127.0.0.1:8474: Address already in use (os error 98); find the process";
        assert_eq!(taken_ports(text).iter().map(|port| (port.number, port.flag.as_str())).collect::<Vec<_>>(), [(8474, "page-port")]);
        assert_eq!(taken_ports("the health server cannot listen on 192.0.2.1:80: Cannot assign requested address"), []);
        for (text, port) in [
            ("cannot add link flannel.1: … (os error 98); another program uses UDP port 8472, which flannel.1 needs: find it with …", Some(8472)),
            ("flannel-wg: …; another WireGuard interface or program uses UDP port 51820, which flannel-wg needs: find it", Some(51820)),
            ("flannel0: UDP 192.0.2.1:8285 is taken by another program (`ss`), another flanneld", Some(8285)),
            ("flannel0: UDP [::]:8285 is taken by another program (`ss`), another flanneld", Some(8285)),
            ("UDP x is taken by another program", None),
            ("another program uses UDP port 99999, which is none", None),
        ] {
            assert_eq!(taken_ports(text).iter().map(|port| port.number).next(), port, "{text}");
        }
        let text = "unknown backend type: x; set Backend.Type in the network configuration to one of alloc";
        assert_eq!((config_trouble(text), config_trouble("another backend: Backend.Type")), (Some(text), None));
        let text = "… This node chose enp0s3: the default route's. Its interfaces:\n  enp0s3  10.0.2.15";
        assert_eq!(chosen_in(text), Some(("enp0s3", "the default route's")));
    }
}
