//! Kernel objects of a host as comparable text: the objects of flannel, and the objects of other programs.

use anyhow::Result;
use lab::Host;

/// All kernel objects of flannel, as sorted lines.
pub(super) fn flannel_object_lines(host: &Host) -> Result<String> {
    let netns = host.netns();
    let mut lines = Vec::new();
    for link in netns.links()?.iter().filter(|link| link.ifname.starts_with("flannel")) {
        let up = link.flags.iter().any(|flag| flag == "UP");
        lines.push(format!(
            "link {} mac {} mtu {} up {up} {}",
            link.ifname, link.address, link.mtu, link.linkinfo
        ));
        let neighbours = netns.neighbours(&link.ifname)?;
        let permanent = neighbours
            .iter()
            .filter(|entry| entry.state == ["PERMANENT"] && !entry.dst.starts_with("10.98."));
        lines.extend(
            permanent.map(|entry| {
                format!("neighbour {} {:?} on {}", entry.dst, entry.lladdr, entry.dev)
            }),
        );
        lines.extend(netns.fdb(&link.ifname)?.iter().filter_map(|entry| {
            Some(format!("fdb {} {} on {}", entry.mac, entry.dst.as_ref()?, entry.ifname))
        }));
    }
    let addresses = netns.addresses()?;
    let addresses = addresses.iter().filter(|entry| {
        entry.ifname.starts_with("flannel")
            && entry.scope == "global"
            && !entry.net.starts_with("10.98.")
    });
    lines.extend(addresses.map(|entry| format!("address {} on {}", entry.net, entry.ifname)));
    let routes = [netns.v4_routes()?, netns.v6_routes()?].concat();
    let routes = routes.iter().filter(|route| route.protocol == "241");
    lines.extend(routes.map(|route| {
        format!("route {} via {:?} dev {:?} {:?}", route.dst, route.gateway, route.dev, route.flags)
    }));
    Ok(sort_lines(&lines.join("\n")))
}

/// A link with its address and routes, and objects on flannel's device.
pub(super) fn foreign_object_lines(host: &Host, on_device: bool) -> Result<String> {
    let netns = host.netns();
    let is_theirs = |dev: &str| dev == "other0" || on_device && dev.starts_with("flannel");
    let mut lines: Vec<String> = netns
        .v4_routes()?
        .iter()
        .filter(|route| {
            route.protocol == "static" && is_theirs(route.dev.as_deref().unwrap_or_default())
        })
        .map(|route| format!("route {} via {:?} dev {:?}", route.dst, route.gateway, route.dev))
        .collect();
    let addresses = netns.addresses()?;
    lines.extend(
        addresses
            .iter()
            .filter(|entry| is_theirs(&entry.ifname) && !entry.net.starts_with("10.5."))
            .map(|entry| format!("{entry:?}")),
    );
    if on_device && netns.links()?.iter().any(|link| link.ifname == "flannel.1") {
        let neighbours = netns.neighbours("flannel.1")?;
        lines.extend(
            neighbours
                .iter()
                .filter(|entry| entry.dst.starts_with("10.98."))
                .map(|entry| format!("{} {:?}", entry.dst, entry.lladdr)),
        );
    }
    // The kernel creates the device's own IPv6 addresses, and they appear and disappear with it.
    lines.retain(|line| !line.contains("fe80") && !line.contains("fd00:5"));
    Ok(sort_lines(&lines.join("\n")))
}

pub(super) fn sort_lines(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}
