//! Reads the flags about this node: its identity, its files and its kernel settings.

use crate::environment::Environment;
use crate::flags::NodeFlags;
use crate::reader::{Reader, given};
use crate::settings::{CniConf, NodeSettings};
use crate::value::Value;
use std::path::PathBuf;
use std::time::Duration;
use types::Problem;
use types::wireguard::{KEY_VARIABLE, PRESHARED_VARIABLE};

impl NodeFlags {
    /// `backends` are the names of all backends.
    pub(super) fn read(
        &self,
        environment: &Environment,
        backends: &[&str],
        reader: &mut Reader,
    ) -> NodeSettings {
        let Self {
            subnet_file,
            install_cni_conf,
            node_id,
            require_backend,
            refuse_insecure,
            audit_interval,
            set_sysctls,
            route_protocol,
        } = self;
        let seconds = reader.ranged(audit_interval, 0, 86_400, "seconds; 0: on events only");
        NodeSettings {
            audit: (seconds > 0).then(|| Duration::from_secs(seconds)),
            route_protocol: number_of_routes(route_protocol, reader),
            id: identity(node_id, reader),
            subnet_file: path_of_subnet_file(subnet_file, reader),
            cni_conf: source_and_destination(install_cni_conf, reader),
            set_sysctls: reader.on(set_sysctls),
            require_backend: known_backends(require_backend, backends, reader),
            refuse_insecure: reader.on(refuse_insecure),
            key_file: environment(KEY_VARIABLE).map(PathBuf::from),
            preshared_file: environment(PRESHARED_VARIABLE).map(PathBuf::from),
        }
    }
}

fn identity(values: &[Value<String>], reader: &mut Reader) -> Option<String> {
    let value = given(values)?;
    if value.text.len() > 253 || value.text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        reader.wrong(value.unusable("not-a-node-id", format!("{:?} is not a node identity: use at most 253 bytes, without blanks and control characters", value.text)));
    }
    Some(value.text.clone())
}

/// The backends that `--require-backend` lists. Records a mistake for each name that is not in `all`.
fn known_backends(values: &[Value<String>], all: &[&str], reader: &mut Reader) -> Vec<String> {
    let Some(value) = given(values) else {
        return Vec::new();
    };
    // Names are not case-sensitive, as in the network configuration.
    let names: Vec<String> = value
        .text
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    if names.is_empty() {
        reader.wrong(value.unusable("no-backend", format!("{:?} names no backend", value.text)));
    }
    for name in names.iter().filter(|name| !all.contains(&name.as_str())) {
        reader.wrong(value.unusable(
            "unknown-backend",
            format!("{name:?} is not a backend; the backends are {}", all.join(", ")),
        ));
    }
    names
}

fn path_of_subnet_file(values: &[Value<String>], reader: &mut Reader) -> PathBuf {
    let Some(value) = values.last() else {
        return PathBuf::new();
    };
    let file = PathBuf::from(&value.text);
    if file.file_name().is_none() {
        reader.wrong(
            value.unusable("not-a-file", format!("{:?} is not the path of a file", value.text)),
        );
    }
    file
}

fn source_and_destination(values: &[Value<String>], reader: &mut Reader) -> Option<CniConf> {
    let value = given(values)?;
    let paths = value
        .text
        .split_once(':')
        .map(|(source, destination)| (PathBuf::from(source), PathBuf::from(destination)));
    match paths {
        Some((source, destination))
            if source.file_name().is_some() && destination.file_name().is_some() =>
        {
            Some(CniConf { source, destination })
        }
        _ => {
            reader.wrong(value.unusable("not-two-files", format!("{:?} does not contain the paths of two files with a colon between them, such as /etc/kube-flannel/cni-conf.json:/etc/cni/net.d/10-flannel.conflist", value.text)));
            None
        }
    }
}

/// The protocol number of flannel's routes. Warns about numbers that `/etc/iproute2/rt_protos` assigns to routing
/// daemons.
fn number_of_routes(values: &[Value<i64>], reader: &mut Reader) -> u8 {
    let number =
        reader.ranged(values, 5, 255, "0 to 4 belong to the kernel and to manually added routes");
    if let Some(value) = values.last()
        && matches!(number, 8..=18 | 42 | 186..=189 | 192)
    {
        reader.warnings.push(Problem::new(
            "route-protocol-of-a-daemon",
            format!(
                "{}={number} is the number of a routing daemon: if that daemon runs on this node, flanneld treats the daemon's routes inside the network as flannel's routes",
                value.from
            ),
        ));
    }
    u8::try_from(number).unwrap_or(u8::MAX)
}
