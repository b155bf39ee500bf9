//! From flags to settings: every mistake is collected, none ends the reading.

use crate::endpoint::{Endpoint, clean, holds_user};
use crate::flags::{
    DatapathFlags, DirFlags, EtcdFlags, Flags, HealthFlags, InterfaceFlags, LeaseFlags, LogFlags,
    NodeFlags, OtherFlags, RuleFlags, StoreFlags,
};
use crate::go;
use crate::kube::{check_variables, kube, node_identity};
use crate::mistake::{Fault, Mistake, Partner, PatternError, Warning};
use crate::reader::{Reader, file, given};
use crate::selector::{Pattern, Selector};
use crate::settings::{CniConf, Logging, Settings};
use crate::store::{Etcd, Secret, Store, Tls};
use crate::value::{Origin, Value};
use packet_engine::features::Features;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use traffic_rules::rules::{GuardOptions, RuleOptions};
use types::{Addresses, Family};

/// What the flags ask for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// To run.
    Run(Box<Settings>),
    /// To print the version.
    Version,
}

/// Reads all flags. `backends` are the names of all backends.
///
/// # Errors
/// Every mistake found.
pub(crate) fn read(
    flags: &Flags,
    mut reader: Reader,
    backends: &[&str],
) -> Result<Asked, Vec<Mistake>> {
    let Flags {
        store,
        lease,
        interface,
        node,
        health,
        log,
        rules,
        datapath,
        other,
    } = flags;
    let OtherFlags { version, help: _ } = other;
    let version = reader.on(version);
    let store = store_of(store, &mut reader);
    let store = match store {
        Store::Kube(mut kube) => {
            check_variables().unwrap_or_else(|mistake| reader.wrong(mistake));
            // Help and version need no Node.
            match node_identity() {
                Ok(identity) => kube.identity = identity,
                Err(why) => reader.wrong(why),
            }
            Store::Kube(kube)
        }
        store => store,
    };
    let InterfaceFlags {
        iface: _,
        iface_cidr: _,
        iface_regex: _,
        iface_can_reach: _,
        iface_wait,
        public_ip,
        public_ipv6,
    } = interface;
    let mut selectors = selectors(interface, &mut reader);
    if matches!(store, Store::Kube(_)) && selectors.contains(&Selector::Auto) {
        selectors.retain(|selector| *selector != Selector::Auto);
        reader.warnings.push(Warning::Auto);
    }
    let public = Addresses::from_options(
        reader.address(public_ip, Family::V4),
        reader.address(public_ipv6, Family::V6),
    );
    let LeaseFlags {
        subnet_lease_renew_margin,
    } = lease;
    let margin = reader.ranged(
        subnet_lease_renew_margin,
        1,
        1439,
        "minutes, less than the lease's 24 hours",
    );
    let iface_wait = reader.ranged(iface_wait, 0, 31_536_000, "seconds; 0 waits forever");
    let NodeFlags {
        subnet_file,
        install_cni_conf,
        node_id,
        require_backend,
        refuse_insecure,
        audit_interval,
        set_sysctls,
        route_protocol,
    } = node;
    let audit = reader.ranged(audit_interval, 0, 86_400, "seconds; 0: on events only");
    let route_protocol = route_protocol_of(route_protocol, &mut reader);
    let RuleFlags {
        iptables_resync,
        ip_blackhole_route,
        ..
    } = rules;
    let resync = resync(iptables_resync, &mut reader);
    let blackhole = reader.on(ip_blackhole_route);
    let rules = choices(rules, &mut reader);
    let features = features(datapath, &mut reader);
    let HealthFlags {
        healthz_ip,
        healthz_port,
        status_ip,
        status_port,
        probe_port,
    } = health;
    let probe_port = reader.ranged(probe_port, 0, 65_535, "ports; 0: no probes");
    let health = listen_address(healthz_ip, healthz_port, &mut reader);
    let status = listen_address(status_ip, status_port, &mut reader);
    let logging = logging(log, &mut reader);
    let node_id = identity(node_id, &mut reader);
    let subnet_file = subnet_file_of(subnet_file, &mut reader);
    let cni_conf = cni_conf_of(install_cni_conf, &mut reader);
    let set_sysctls = reader.on(set_sysctls);
    let require_backend = backends_of(require_backend, backends, &mut reader);
    let refuse_insecure = reader.on(refuse_insecure);
    // Go looks at --version before it looks at the environment, but after it has read all flags.
    if version && reader.argv.is_empty() {
        return Ok(Asked::Version);
    }
    let beside: Vec<Mistake> = reader.warnings.iter().cloned().map(Mistake::Also).collect();
    let warnings = reader
        .end()
        .map_err(|mistakes| [mistakes, beside].concat())?;
    Ok(Asked::Run(Box::new(Settings {
        store,
        renew_margin: Duration::from_secs(margin.saturating_mul(60)),
        selectors,
        public,
        iface_wait: (iface_wait > 0).then(|| Duration::from_secs(iface_wait)),
        subnet_file,
        cni_conf,
        ip_masq: rules.masquerade,
        rules,
        rules_resync: resync,
        set_sysctls,
        blackhole,
        node_id,
        require_backend,
        refuse_insecure,
        audit: (audit > 0).then(|| Duration::from_secs(audit)),
        route_protocol,
        features,
        health,
        status,
        probe_port: u16::try_from(probe_port).ok().filter(|port| *port > 0),
        logging,
        warnings,
    })))
}

impl StoreFlags {
    /// Where the leases are, with warnings, for programs that have these flags alone.
    ///
    /// # Errors
    /// Every mistake found.
    pub fn read(&self) -> Result<(Store, Vec<Warning>), Vec<Mistake>> {
        let mut reader = Reader::default();
        let store = store_of(self, &mut reader);
        reader.end().map(|warnings| (store, warnings))
    }
}

fn store_of(flags: &StoreFlags, reader: &mut Reader) -> Store {
    let StoreFlags {
        etcd,
        dir: DirFlags { subnet_dir },
        kubernetes,
    } = flags;
    let kube = kube(kubernetes, reader);
    let EtcdFlags {
        etcd_endpoints,
        etcd_prefix,
        etcd_cafile,
        etcd_certfile,
        etcd_keyfile,
        etcd_username,
        etcd_password,
    } = etcd;
    if let Some(kube) = kube {
        if let Some(dir) = given(subnet_dir) {
            reader.wrong(Mistake::TwoStores {
                dir: dir.from.clone(),
                other: "--kube-subnet-mgr".to_owned(),
                kubernetes: true,
            });
        }
        return Store::Kube(Box::new(kube));
    }
    if let Some(dir) = given(subnet_dir) {
        let all = [
            etcd_endpoints,
            etcd_prefix,
            etcd_cafile,
            etcd_certfile,
            etcd_keyfile,
            etcd_username,
            etcd_password,
        ];
        for other in all
            .into_iter()
            .flatten()
            .filter(|value| value.origin != Origin::Default)
        {
            reader.wrong(Mistake::TwoStores {
                dir: dir.from.clone(),
                other: other.from.clone(),
                kubernetes: false,
            });
        }
        return Store::Dir(PathBuf::from(&dir.text));
    }
    let client = match (given(etcd_certfile), given(etcd_keyfile)) {
        (Some(cert), Some(key)) => Some((PathBuf::from(&cert.text), PathBuf::from(&key.text))),
        (None, None) => None,
        (Some(one), None) => {
            reader.wrong(Mistake::Alone {
                from: one.from.clone(),
                missing: Partner::KeyFile,
            });
            None
        }
        (None, Some(one)) => {
            reader.wrong(Mistake::Alone {
                from: one.from.clone(),
                missing: Partner::CertFile,
            });
            None
        }
    };
    let ca = file(etcd_cafile);
    let endpoints = endpoints(etcd_endpoints, client.is_some(), reader);
    let mut tls = (ca.is_some() || client.is_some()).then_some(Tls { ca, client });
    if tls.is_some() {
        for endpoint in endpoints.iter().filter(|endpoint| !endpoint.tls) {
            reader.warnings.push(Warning::TlsUnused(endpoint.clone()));
        }
        if endpoints.iter().all(|endpoint| !endpoint.tls) {
            tls = None;
        }
    }
    let user = match (given(etcd_username), given(etcd_password)) {
        (Some(user), Some(password)) => {
            Some((user.text.clone(), Secret::new(password.text.clone())))
        }
        (None, None) => None,
        (Some(user), None) => {
            reader.wrong(Mistake::Alone {
                from: user.from.clone(),
                missing: Partner::Password,
            });
            None
        }
        (None, Some(password)) => {
            reader.wrong(Mistake::Alone {
                from: password.from.clone(),
                missing: Partner::User,
            });
            None
        }
    };
    let prefix = etcd_prefix.last().map(|value| (value, clean(&value.text)));
    if let Some((value, cleaned)) = &prefix
        && (cleaned == "." || cleaned.starts_with(".."))
    {
        reader.wrong(value.mistake(Fault::Root(value.text.clone())));
    }
    let prefix = prefix
        .map(|(_, cleaned)| cleaned)
        .filter(|cleaned| cleaned != "/")
        .unwrap_or_default();
    Store::Etcd(Etcd {
        endpoints,
        prefix,
        tls,
        user,
    })
}

/// etcd's addresses; those without a scheme speak TLS where `tls_by_default`.
fn endpoints(values: &[Value<String>], tls_by_default: bool, reader: &mut Reader) -> Vec<Endpoint> {
    let Some(value) = values.last() else {
        return Vec::new();
    };
    let parts: Vec<&str> = value
        .text
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .collect();
    if parts.is_empty() {
        reader.wrong(value.mistake(Fault::NoEndpoint));
    }
    let (endpoints, wrong): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .map(|text| Endpoint::parse(text, tls_by_default))
        .partition(Result::is_ok);
    if !wrong.is_empty() && holds_user(&value.text) {
        // A comma in a password cuts it in pieces: none of them is shown.
        reader.wrong(value.mistake(Fault::EndpointUser));
    } else {
        wrong
            .into_iter()
            .filter_map(Result::err)
            .for_each(|why| reader.wrong(value.mistake(Fault::Endpoint(why))));
    }
    endpoints.into_iter().flatten().collect()
}

/// The wanted interfaces, in the order of trying. An empty value means the default route's, as manifests with an unset variable rely on.
fn selectors(flags: &InterfaceFlags, reader: &mut Reader) -> Vec<Selector> {
    let InterfaceFlags {
        iface,
        iface_cidr,
        iface_regex,
        iface_can_reach,
        ..
    } = flags;
    let mut out = Vec::new();
    for value in iface {
        out.push(match value.text.as_str() {
            "" => Selector::DefaultRoute(value.from.clone()),
            "auto" => Selector::Auto,
            text => text
                .parse()
                .map_or_else(|_| Selector::Name(text.to_owned()), Selector::Address),
        });
    }
    for value in iface_cidr {
        if value.text.is_empty() {
            out.push(Selector::DefaultRoute(value.from.clone()));
            continue;
        }
        match value.text.parse::<ipnet::IpNet>() {
            Ok(net) => out.push(Selector::Cidr(net.trunc())),
            Err(_) => reader.wrong(value.mistake(Fault::InterfaceNetwork(value.text.clone()))),
        }
    }
    for value in iface_regex {
        if value.text.is_empty() {
            out.push(Selector::DefaultRoute(value.from.clone()));
            continue;
        }
        match Pattern::new(&value.text) {
            Ok(pattern) => out.push(Selector::Regex(pattern)),
            Err(cause) => reader.wrong(value.mistake(Fault::Pattern(PatternError {
                pattern: value.text.clone(),
                cause,
            }))),
        }
    }
    if let Some(value) = given(iface_can_reach) {
        match value.text.parse::<IpAddr>() {
            Ok(target) => out.push(Selector::CanReach(target)),
            Err(_) => reader.wrong(value.mistake(Fault::Address(value.text.clone()))),
        }
    }
    out
}

fn identity(values: &[Value<String>], reader: &mut Reader) -> Option<String> {
    let value = given(values)?;
    if value.text.len() > 253
        || value
            .text
            .chars()
            .any(|c| c.is_control() || c.is_whitespace())
    {
        reader.wrong(value.mistake(Fault::NodeId(value.text.clone())));
    }
    Some(value.text.clone())
}

/// The backends that a network configuration may name, of all that there are.
fn backends_of(values: &[Value<String>], all: &[&str], reader: &mut Reader) -> Vec<String> {
    let Some(value) = given(values) else {
        return Vec::new();
    };
    // As in the configuration, capitals do not matter.
    let names: Vec<String> = value
        .text
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    if names.is_empty() {
        reader.wrong(value.mistake(Fault::NoBackend(value.text.clone())));
    }
    for name in names.iter().filter(|name| !all.contains(&name.as_str())) {
        reader.wrong(value.mistake(Fault::Backend {
            name: name.clone(),
            known: all.iter().map(|name| (*name).to_owned()).collect(),
        }));
    }
    names
}

fn subnet_file_of(values: &[Value<String>], reader: &mut Reader) -> PathBuf {
    let Some(value) = values.last() else {
        return PathBuf::new();
    };
    let file = PathBuf::from(&value.text);
    if file.file_name().is_none() {
        reader.wrong(value.mistake(Fault::File(value.text.clone())));
    }
    file
}

fn cni_conf_of(values: &[Value<String>], reader: &mut Reader) -> Option<CniConf> {
    let value = given(values)?;
    let paths = value
        .text
        .split_once(':')
        .map(|(source, destination)| (PathBuf::from(source), PathBuf::from(destination)));
    match paths {
        Some((source, destination))
            if source.file_name().is_some() && destination.file_name().is_some() =>
        {
            Some(CniConf {
                source,
                destination,
            })
        }
        _ => {
            reader.wrong(value.mistake(Fault::TwoFiles(value.text.clone())));
            None
        }
    }
}

fn route_protocol_of(values: &[Value<i64>], reader: &mut Reader) -> u8 {
    let number = reader.ranged(
        values,
        5,
        255,
        "0 to 4 belong to the kernel and to routes made by hand",
    );
    if let Some(value) = values.last()
        && matches!(number, 8..=18 | 42 | 186..=189 | 192)
    {
        reader.warnings.push(Warning::RouteProtocol {
            from: value.from.clone(),
            number,
        });
    }
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// How often iptables rules are compared: any number that Go flannel takes.
fn resync(values: &[Value<i64>], reader: &mut Reader) -> Duration {
    let Some((value, seconds)) = reader.last(values) else {
        return Duration::ZERO;
    };
    let seconds = u64::try_from(seconds).unwrap_or(0);
    if seconds == 0 {
        reader.warnings.push(Warning::NoPause {
            from: value.from.clone(),
        });
    }
    Duration::from_secs(if seconds == 0 { 5 } else { seconds.min(86_400) })
}

/// Where a server listens; none where its port is 0.
fn listen_address(
    ip: &[Value<String>],
    port: &[Value<i64>],
    reader: &mut Reader,
) -> Option<SocketAddr> {
    let (from, port) = reader.last(port).filter(|(_, port)| *port > 0)?;
    let value = ip.last()?;
    let bare = value
        .text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(&value.text);
    let ip = match bare {
        "" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => bare.parse().ok(),
    };
    if ip.is_none() {
        reader.wrong(value.mistake(Fault::Address(value.text.clone())));
    }
    match u16::try_from(port) {
        Ok(port) => ip.map(|ip| SocketAddr::new(ip, port)),
        Err(_) => {
            reader.wrong(from.mistake(Fault::Port(port)));
            None
        }
    }
}

/// The log's options. klog's own are read as klog reads them, though nothing listens to them.
fn logging(flags: &LogFlags, reader: &mut Reader) -> Logging {
    let LogFlags {
        log_format,
        v,
        vmodule,
        log_backtrace_at,
    } = flags;
    if let Some(value) = given(vmodule) {
        for part in value.text.split(',').filter(|part| !part.is_empty()) {
            let level = part
                .split_once('=')
                .filter(|(pattern, _)| !pattern.is_empty())
                .and_then(|(_, level)| go::decimal(level));
            if level.is_none_or(|level| level < 0) {
                reader.wrong(value.mistake(Fault::Vmodule(part.to_owned())));
            }
        }
    }
    if let Some(value) = given(log_backtrace_at) {
        let line = value
            .text
            .split_once(':')
            .filter(|(file, _)| !file.is_empty())
            .and_then(|(_, line)| go::decimal(line));
        if line.is_none_or(|line| line <= 0) {
            reader.wrong(value.mistake(Fault::Backtrace(value.text.clone())));
        }
    }
    let format = reader.choice(log_format);
    Logging {
        format,
        verbosity: reader.last(v).map_or(0, |(_, level)| level),
    }
}

/// What was chosen about traffic rules.
fn choices(flags: &RuleFlags, reader: &mut Reader) -> RuleOptions {
    let RuleFlags {
        ip_masq,
        ip_masq_fully_random_disable,
        non_masquerade_cidr,
        masquerade_inbound,
        iptables_forward_rules,
        iptables_forward_insert,
        iptables_resync: _,
        encap_notrack,
        encap_peers,
        encap_bar_pods,
        ip_blackhole_route: _,
    } = flags;
    let mut non_masquerade = Vec::new();
    for value in non_masquerade_cidr {
        match value.text.parse::<ipnet::IpNet>() {
            Ok(net) => non_masquerade.push(net.trunc()),
            Err(_) => reader.wrong(value.mistake(Fault::Network(value.text.clone()))),
        }
    }
    let unknown_senders = reader.choice(encap_peers);
    RuleOptions {
        guard: GuardOptions {
            notrack: reader.on(encap_notrack),
            unknown_senders,
            bar_pods: reader.on(encap_bar_pods),
        },
        masquerade: reader.on(ip_masq),
        fully_random: !reader.on(ip_masq_fully_random_disable),
        masquerade_inbound: reader.on(masquerade_inbound),
        non_masquerade,
        forward: reader.on(iptables_forward_rules),
        forward_insert: reader.on(iptables_forward_insert),
    }
}

/// How packets are moved in userspace.
fn features(flags: &DatapathFlags, reader: &mut Reader) -> Features {
    let DatapathFlags {
        datapath,
        datapath_queues,
    } = flags;
    let features = reader.choice(datapath);
    let queues = reader.ranged(
        datapath_queues,
        0,
        16,
        "0 to follow the number of processors",
    );
    match usize::try_from(queues) {
        Ok(queues) if queues > 0 => Features { queues, ..features },
        _ => features,
    }
}
