//! From given flags and variables to settings; every mistake is collected, none ends the reading.

use super::endpoint::{Endpoint, USER, clean, holds_user};
use super::flags::{self, Flag, Kind, Part};
use super::go_flag::{self, Argv};
use super::settings::{Etcd, LogFormat, Logging, Secret, Settings, Store, Tls};
use crate::underlay::{Pattern, Selector};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use traffic_rules::rules::{GuardOptions, RuleOptions, UnknownSenders};

/// A value and who gave it: `--flag` or `FLANNELD_FLAG`.
struct Value {
    flag: &'static Flag,
    from: String,
    text: String,
}

/// All values given, the command line's before the environment's.
pub(super) struct Given {
    values: Vec<Value>,
    pub(super) version: bool,
    pub(super) argv_mistakes: Vec<String>,
    warnings: Vec<String>,
}

impl Given {
    /// The command line's values, and the environment's for the flags that it leaves out.
    pub(super) fn new(argv: Argv, variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut argv_mistakes = argv.mistakes;
        let mut values: Vec<Value> = argv.given.into_iter().map(|(flag, text)| Value { flag, from: format!("--{}", flag.name), text }).collect();
        for value in &values {
            check(value, &mut argv_mistakes);
        }
        let version = values.iter().rfind(|value| value.flag.name == "version").is_some_and(|value| go_flag::truth(&value.text) == Some(true));
        let mut warnings = Vec::new();
        if let Some(ignored) = argv.ignored {
            // `--etcd-password= secret` leaves the secret behind the flags.
            let secret = holds_user(&ignored) || values.iter().any(|value| value.flag.name == "etcd-password");
            let from = if secret { "a word that is not shown".to_owned() } else { format!("{ignored:?}") };
            warnings.push(format!(
                "everything from {from} on is ignored on the command line: flags end at the first word that is none; a switch takes its value with '=', as in --ip-masq=false"
            ));
        }
        for flag in flags::all() {
            if values.iter().any(|value| value.flag.name == flag.name) {
                continue;
            }
            if let Some(name) = flags::variable(flag)
                && let Some(text) = variable(&name).filter(|text| !text.is_empty())
            {
                values.push(Value { flag, from: name, text });
            }
        }
        Self { values, version, argv_mistakes, warnings }
    }

    /// The last value of a flag.
    fn last(&self, name: &str) -> Option<&Value> {
        self.values.iter().rfind(|value| value.flag.name == name)
    }

    /// All values of a flag, in order.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.values.iter().filter(move |value| value.flag.name == name)
    }

    /// A flag's text, its default where it is not given.
    fn text(&self, name: &str) -> &str {
        self.last(name).map_or_else(|| flags::find(name).map_or("", |flag| flag.default), |value| &value.text)
    }

    /// A flag's text where it is not empty.
    fn some(&self, name: &str) -> Option<&Value> {
        self.last(name).filter(|value| !value.text.is_empty())
    }

    fn integer(&self, name: &str) -> i64 {
        // A text that is none was told by `check`; the default keeps the reading going.
        go_flag::integer(self.text(name)).or_else(|| go_flag::integer(flags::find(name)?.default)).unwrap_or(0)
    }

    /// Whether a switch is on.
    fn on(&self, name: &str) -> bool {
        go_flag::truth(self.text(name)).unwrap_or(false)
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.some(name).map(|value| PathBuf::from(&value.text))
    }

    /// Who gave a flag, for texts; the flag itself where nobody did.
    fn from(&self, name: &str) -> String {
        self.last(name).map_or_else(|| format!("--{name}"), |value| value.from.clone())
    }
}

/// Whether a value is of its flag's kind.
fn check(value: &Value, mistakes: &mut Vec<String>) {
    let Value { flag, from, text } = value;
    match flag.kind {
        Kind::Int if go_flag::integer(text).is_none() => mistakes.push(format!("{from}: {text:?} is not an integer")),
        Kind::Level if go_flag::decimal(text).is_none() => mistakes.push(format!("{from}: {text:?} is not a decimal integer")),
        Kind::Switch if go_flag::truth(text).is_none() => mistakes.push(format!("{from}: {text:?} is neither true nor false")),
        _ => {}
    }
}

/// Builds the settings.
///
/// # Errors
/// Every mistake found.
pub(super) fn settings(given: &Given) -> Result<Settings, Vec<String>> {
    let mut mistakes = given.argv_mistakes.clone();
    for value in given.values.iter().filter(|value| value.from != format!("--{}", value.flag.name)) {
        check(value, &mut mistakes);
    }
    for flag in flags::all().filter(|flag| flag.part == Part::NotYet) {
        if let Some(value) = given.last(flag.name)
            && go_flag::truth(&value.text) == Some(true)
        {
            mistakes.push(format!("{}={}: {} is not built yet in this version; leave it out or set it to false", value.from, value.text, value.from));
        }
    }
    let mut warnings = given.warnings.clone();
    let store = store(given, &mut mistakes, &mut warnings);
    let selectors = selectors(given, &mut mistakes);
    let public_ip = address(given, "public-ip", "invalid public IP address", "an IPv4", &mut mistakes);
    let public_ipv6 = address(given, "public-ipv6", "invalid public IPv6 address", "an IPv6", &mut mistakes);
    let margin = ranged(given, "subnet-lease-renew-margin", 1, 1439, "minutes, less than the lease's 24 hours", &mut mistakes);
    let iface_wait = ranged(given, "iface-wait", 0, 31_536_000, "seconds, 0 for ever", &mut mistakes);
    let audit = ranged(given, "audit-interval", 0, 86_400, "seconds, 0 for events only", &mut mistakes);
    let route_protocol = ranged(given, "route-protocol", 5, 255, "0 to 4 belong to the kernel and to routes made by hand", &mut mistakes);
    let resync = u64::try_from(given.integer("iptables-resync")).unwrap_or(0);
    if resync == 0 {
        warnings.push(format!("{}: Go flannel would never pause; 5 s are used", given.from("iptables-resync")));
    }
    let resync = if resync == 0 { 5 } else { resync.min(86_400) };
    let rules = rules(given, &mut mistakes);
    if matches!(route_protocol, 8..=18 | 42 | 186..=189 | 192) {
        warnings.push(format!(
            "{}={route_protocol} is the number of a routing daemon: if one runs here, its routes inside the network count as ours",
            given.from("route-protocol")
        ));
    }
    klog(given, &mut mistakes);
    let health = health(given, &mut mistakes);
    let format = match given.text("log-format") {
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        other => {
            mistakes.push(format!("{}: {other:?} is not a log format; there are text and json", given.from("log-format")));
            LogFormat::Text
        }
    };
    let node_id = given.some("node-id").map(|value| value.text.clone());
    if let Some(id) = &node_id
        && (id.len() > 253 || id.chars().any(|c| c.is_control() || c.is_whitespace()))
    {
        mistakes
            .push(format!("{}: {id:?} is no identity; it has at most 253 bytes and neither blanks nor control characters", given.from("node-id")));
    }
    let subnet_file = PathBuf::from(given.text("subnet-file"));
    if subnet_file.file_name().is_none() {
        mistakes.push(format!("{}: {:?} is not the path of a file", given.from("subnet-file"), given.text("subnet-file")));
    }
    let verbosity = go_flag::decimal(given.text("v")).unwrap_or(0);
    if !mistakes.is_empty() {
        mistakes.extend(warnings.iter().map(|warning| format!("beside that: {warning}")));
        return Err(mistakes);
    }
    Ok(Settings {
        store,
        renew_margin: Duration::from_secs(margin.saturating_mul(60)),
        selectors,
        public_ip,
        public_ipv6,
        iface_wait: (iface_wait > 0).then(|| Duration::from_secs(iface_wait)),
        subnet_file,
        ip_masq: rules.masquerade,
        rules,
        rules_resync: Duration::from_secs(resync),
        set_sysctls: given.on("set-sysctls"),
        blackhole: given.on("ip-blackhole-route"),
        node_id,
        audit: (audit > 0).then(|| Duration::from_secs(audit)),
        route_protocol: u8::try_from(route_protocol).unwrap_or(u8::MAX),
        health,
        logging: Logging { format, verbosity },
        warnings,
    })
}

/// Where the leases are, and what is odd about how that was said.
///
/// # Errors
/// Every mistake found.
pub(super) fn store_alone(given: &Given) -> Result<(Store, Vec<String>), Vec<String>> {
    let (mut mistakes, mut warnings) = (given.argv_mistakes.clone(), given.warnings.clone());
    let store = store(given, &mut mistakes, &mut warnings);
    if mistakes.is_empty() { Ok((store, warnings)) } else { Err(mistakes) }
}

/// An integer within bounds.
fn ranged(given: &Given, name: &str, low: u64, high: u64, note: &str, mistakes: &mut Vec<String>) -> u64 {
    let value = given.integer(name);
    match u64::try_from(value) {
        Ok(value) if (low..=high).contains(&value) => value,
        _ => {
            mistakes.push(format!("{}: {value} is out of range, it must be {low} to {high} ({note})", given.from(name)));
            low
        }
    }
}

fn address<A: std::str::FromStr>(given: &Given, name: &str, complaint: &str, family: &str, mistakes: &mut Vec<String>) -> Option<A> {
    let value = given.some(name)?;
    match value.text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            mistakes.push(format!("{}: {complaint}: {}; it must be {family} address", value.from, value.text));
            None
        }
    }
}

fn store(given: &Given, mistakes: &mut Vec<String>, warnings: &mut Vec<String>) -> Store {
    if let Some(dir) = given.some("subnet-dir") {
        for other in given.values.iter().filter(|value| value.flag.name.starts_with("etcd-")) {
            mistakes.push(format!("{} and {} exclude each other: leases are kept in a directory or in etcd", dir.from, other.from));
        }
        return Store::Dir(PathBuf::from(&dir.text));
    }
    let client = match (given.file("etcd-certfile"), given.file("etcd-keyfile")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (cert, _) => {
            let (have, lacking) = if cert.is_some() { ("etcd-certfile", "etcd-keyfile") } else { ("etcd-keyfile", "etcd-certfile") };
            mistakes.push(format!("{} needs --{lacking} too: a client certificate and its key go together", given.from(have)));
            None
        }
    };
    let ca = given.file("etcd-cafile");
    let parts = given.text("etcd-endpoints").split(',').map(str::trim).filter(|text| !text.is_empty());
    let (endpoints, wrong): (Vec<_>, Vec<_>) = parts.map(|text| Endpoint::parse(text, client.is_some())).partition(Result::is_ok);
    let endpoints: Vec<Endpoint> = endpoints.into_iter().flatten().collect();
    if !wrong.is_empty() && holds_user(given.text("etcd-endpoints")) {
        // A comma in a password cuts it in pieces: no piece is repeated.
        mistakes.push(format!("{}: {USER}", given.from("etcd-endpoints")));
    } else {
        mistakes.extend(wrong.into_iter().filter_map(Result::err).map(|why| format!("{}: {why}", given.from("etcd-endpoints"))));
    }
    if endpoints.is_empty() && given.text("etcd-endpoints").split(',').all(|text| text.trim().is_empty()) {
        mistakes.push(format!("{}: there is no endpoint in it; it should look like http://10.0.0.1:2379", given.from("etcd-endpoints")));
    }
    let mut tls = (ca.is_some() || client.is_some()).then_some(Tls { ca, client });
    if tls.is_some() {
        for endpoint in endpoints.iter().filter(|endpoint| !endpoint.tls) {
            warnings.push(format!("the TLS options are not used with {endpoint}, which is not encrypted; write https:// to use them"));
        }
        if endpoints.iter().all(|endpoint| !endpoint.tls) {
            tls = None;
        }
    }
    let user = match (given.some("etcd-username"), given.some("etcd-password")) {
        (Some(user), Some(password)) => Some((user.text.clone(), Secret::new(password.text.clone()))),
        (None, None) => None,
        (Some(user), None) => {
            mistakes.push(format!("{} needs --etcd-password (or FLANNELD_ETCD_PASSWORD) too", user.from));
            None
        }
        (None, Some(password)) => {
            mistakes.push(format!("{} needs --etcd-username too", password.from));
            None
        }
    };
    let prefix = clean(given.text("etcd-prefix"));
    if prefix == "." || prefix.starts_with("..") {
        mistakes.push(format!(
            "{}: {:?} is no root for keys; it should look like /coreos.com/network",
            given.from("etcd-prefix"),
            given.text("etcd-prefix")
        ));
    }
    Store::Etcd(Etcd { endpoints, prefix: if prefix == "/" { String::new() } else { prefix }, tls, user })
}

/// The wanted interfaces, in the order of trying. An empty value means the default route's, as manifests with an unset variable rely on.
fn selectors(given: &Given, mistakes: &mut Vec<String>) -> Vec<Selector> {
    let mut out = Vec::new();
    for value in given.all("iface") {
        out.push(match value.text.as_str() {
            "" => Selector::DefaultRoute(value.from.clone()),
            "auto" => Selector::Auto,
            text => text.parse().map_or_else(|_| Selector::Name(text.to_owned()), Selector::Address),
        });
    }
    for value in given.all("iface-cidr") {
        if value.text.is_empty() {
            out.push(Selector::DefaultRoute(value.from.clone()));
            continue;
        }
        match value.text.parse::<ipnet::IpNet>() {
            Ok(net) => out.push(Selector::Cidr(net.trunc())),
            Err(_) => mistakes.push(format!("{}: {:?} is no network; it should look like 192.168.56.0/24", value.from, value.text)),
        }
    }
    for value in given.all("iface-regex") {
        if value.text.is_empty() {
            out.push(Selector::DefaultRoute(value.from.clone()));
            continue;
        }
        match Pattern::new(&value.text) {
            Ok(pattern) => out.push(Selector::Regex(pattern)),
            Err(why) => mistakes.push(format!("{}: could not compile the IP address regex '{}': {why}", value.from, value.text)),
        }
    }
    if let Some(value) = given.some("iface-can-reach") {
        match value.text.parse::<IpAddr>() {
            Ok(target) => out.push(Selector::CanReach(target)),
            Err(_) => mistakes.push(format!("{}: {:?} is not an IP address", value.from, value.text)),
        }
    }
    out
}

fn health(given: &Given, mistakes: &mut Vec<String>) -> Option<SocketAddr> {
    let port = given.integer("healthz-port");
    if port <= 0 {
        return None;
    }
    let text = given.text("healthz-ip");
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let ip = match bare {
        "" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => bare.parse().ok(),
    };
    if ip.is_none() {
        mistakes.push(format!("{}: {text:?} is not an IP address", given.from("healthz-ip")));
    }
    match u16::try_from(port) {
        Ok(port) => ip.map(|ip| SocketAddr::new(ip, port)),
        Err(_) => {
            mistakes.push(format!("{}: {port} is not a port, they end at 65535", given.from("healthz-port")));
            None
        }
    }
}

/// klog's flags: read as klog reads them, though nothing listens to them.
fn klog(given: &Given, mistakes: &mut Vec<String>) {
    if let Some(value) = given.some("vmodule") {
        for part in value.text.split(',').filter(|part| !part.is_empty()) {
            let level = part.split_once('=').filter(|(pattern, _)| !pattern.is_empty()).and_then(|(_, level)| go_flag::decimal(level));
            if level.is_none_or(|level| level < 0) {
                mistakes.push(format!("{}: {part:?} is not pattern=N", value.from));
            }
        }
    }
    if let Some(value) = given.some("log_backtrace_at") {
        let line = value.text.split_once(':').filter(|(file, _)| !file.is_empty()).and_then(|(_, line)| go_flag::decimal(line));
        if line.is_none_or(|line| line <= 0) {
            mistakes.push(format!("{}: {:?} is not file.go:N", value.from, value.text));
        }
    }
}

/// What was chosen about traffic rules.
fn rules(given: &Given, mistakes: &mut Vec<String>) -> RuleOptions {
    let on = |name: &str| given.on(name);
    let mut non_masquerade = Vec::new();
    for value in given.all("non-masquerade-cidr") {
        match value.text.parse::<ipnet::IpNet>() {
            Ok(net) => non_masquerade.push(net.trunc()),
            Err(_) => mistakes.push(format!("{}: {:?} is not a network such as 10.0.0.0/8", value.from, value.text)),
        }
    }
    let strangers = match given.text("encap-peers") {
        "off" => UnknownSenders::Off,
        "count" => UnknownSenders::Count,
        "drop" => UnknownSenders::Drop,
        other => {
            mistakes.push(format!("{}: {other:?} is none of off, count and drop", given.from("encap-peers")));
            UnknownSenders::Off
        }
    };
    RuleOptions {
        guard: GuardOptions { notrack: on("encap-notrack"), unknown_senders: strangers, bar_pods: on("encap-bar-pods") },
        masquerade: on("ip-masq"),
        fully_random: !on("ip-masq-fully-random-disable"),
        masquerade_inbound: on("masquerade-inbound"),
        non_masquerade,
        forward: on("iptables-forward-rules"),
        forward_insert: on("iptables-forward-insert"),
    }
}
