//! The sections EXAMPLES and FILES of the manual pages.

use std::path::Path;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// System administration.
const SECTION: &str = "8";

/// Commands or files, each with a description.
type Lines = &'static [(&'static str, &'static str)];

/// The examples of each manual page, by its name.
const EXAMPLES: &[(&str, Lines)] = &[
    (
        "flanneld",
        &[
            (
                "flanneld --etcd-endpoints=http://10.0.0.1:2379 --iface=auto",
                "Stores leases in etcd, and uses the interface that reaches etcd.",
            ),
            (
                "flanneld --subnet-dir=/srv/flannel --iface-cidr=192.168.56.0/24",
                "Stores leases in a directory that all nodes share.",
            ),
            (
                "NODE_NAME=node-1 flanneld --kube-subnet-mgr --kubeconfig-file=/etc/kubernetes/admin.conf",
                "Runs outside of a pod, and stores leases in the Nodes of Kubernetes.",
            ),
        ],
    ),
    (
        "flannelctl",
        &[
            ("flannelctl status", "Summarises this node in about ten lines."),
            ("flannelctl doctor", "Diagnoses this node and prints the commands that fix problems."),
            (
                "flannelctl probe 10.244.3.7",
                "Traces the path to a pod and shows where the path breaks.",
            ),
        ],
    ),
    (
        "flannelctl-dashboard",
        &[
            (
                "flannelctl dashboard",
                "Opens the status page of this node, or prints how to reach it.",
            ),
            (
                "flannelctl dashboard --node node-1",
                "Prints the kubectl command that reaches the status page of a Kubernetes node.",
            ),
        ],
    ),
    (
        "flannelctl-doctor",
        &[
            ("flannelctl doctor", "Diagnoses this node."),
            (
                "flannelctl doctor --cluster",
                "Diagnoses all nodes and groups the findings by cause.",
            ),
            (
                "kubectl flannel doctor",
                "Diagnoses all nodes; needs a link kubectl-flannel to flannelctl in PATH.",
            ),
        ],
    ),
    (
        "flannelctl-status",
        &[
            ("flannelctl status --watch", "Updates the summary every two seconds."),
            (
                "flannelctl status --node node-2",
                "Runs flannelctl status in flannel's pod on a Kubernetes node.",
            ),
        ],
    ),
    (
        "flannelctl-peers",
        &[
            ("flannelctl peers", "Lists the other nodes, faulty nodes first."),
            ("flannelctl peers --all", "Also fetches every other node's report."),
        ],
    ),
    ("flannelctl-routes", &[("flannelctl routes", "Compares desired and actual kernel state.")]),
    (
        "flannelctl-probe",
        &[
            ("flannelctl probe node-3", "Traces the path to a node."),
            ("flannelctl probe 10.244.3.7", "Traces the path to a pod."),
            (
                "flannelctl probe 10.96.0.10:53",
                "Connects to a TCP port from an address of the node and from the address of the pods' bridge.",
            ),
        ],
    ),
    (
        "flannelctl-leases",
        &[
            (
                "flannelctl leases --etcd-endpoints=http://10.0.0.1:2379 --long",
                "Lists the leases in etcd, with the time when each holder was last seen.",
            ),
            ("flannelctl leases --subnet-dir=/srv/flannel", "Lists the leases in a directory."),
            ("flannelctl leases --kube-subnet-mgr", "Lists the leases in the Nodes of Kubernetes."),
        ],
    ),
    (
        "flannelctl-reserve",
        &[(
            "flannelctl reserve --etcd-endpoints=http://10.0.0.1:2379 10.244.7.0/24 --address 192.168.56.107",
            "Reserves a free subnet for the node with the address 192.168.56.107.",
        )],
    ),
    (
        "flannelctl-release",
        &[(
            "flannelctl release --etcd-endpoints=http://10.0.0.1:2379 10.244.7.0-24",
            "Frees the lease of a node that is gone.",
        )],
    ),
    (
        "flannelctl-cleanup",
        &[
            ("flannelctl cleanup --dry-run", "Lists the objects that cleanup would remove."),
            (
                "flannelctl cleanup --cni",
                "Also removes the bridge cni0 and the CNI plugin's files.",
            ),
        ],
    ),
    (
        "flannelctl-support-bundle",
        &[
            ("flannelctl support-bundle --list", "Lists the contents."),
            (
                "flannelctl support-bundle --file=- > node-1.tar.gz",
                "Writes the archive to standard output.",
            ),
        ],
    ),
    (
        "flannelctl-lab",
        &[
            ("flannelctl lab --backend host-gw", "Builds three hosts with the backend host-gw."),
            (
                "flannelctl lab --vagrant",
                "Builds hosts that all have the NAT address 10.0.2.15, as in a Vagrant lab.",
            ),
        ],
    ),
    (
        "flannelctl-completion",
        &[("source <(flannelctl completion bash)", "Enables completion of flags in this shell.")],
    ),
    ("flannelctl-man", &[("flannelctl man /usr/local/share/man/man8", "Writes these pages.")]),
];

fn examples(page: &str) -> Lines {
    let found = EXAMPLES.iter().find(|(name, _)| *name == page);
    found.map_or(&[], |(_, lines)| *lines)
}

/// For the section FILES of every manual page.
const FILES: Lines = &[
    ("/etc/default/flanneld", "Options of the daemon, as environment variables."),
    ("/run/flannel/subnet.env", "Subnet and MTU of this node, for the CNI plugin and Docker."),
    ("/run/flannel/subnet.env.sock", "Socket of the daemon, for flannelctl."),
    ("/run/flannel/subnet.env.ended", "Exit report of a daemon that ended."),
    ("/run/flannel/wgkey", "Private key of the backend wireguard."),
    ("/etc/cni/net.d/10-flannel.conflist", "Configuration of the CNI plugin."),
];

/// Writes the manual page of a command into a directory.
pub(super) fn write(command: &clap::Command, dir: &Path) -> std::io::Result<()> {
    let man = Man::new(command.clone()).section(SECTION).manual("flannel");
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() || command.get_after_long_help().is_some() {
        man.render_extra_section(&mut page)?;
    }
    section("EXAMPLES", examples(name)).to_writer(&mut page)?;
    section("FILES", FILES).to_writer(&mut page)?;
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    run_dir::replace::write_public(&dir.join(man.get_filename()), &page)
}

/// Each line has its explanation below.
fn section(title: &str, lines: Lines) -> Roff {
    let mut roff = Roff::new();
    if !lines.is_empty() {
        roff.control("SH", [title]);
    }
    for (line, text) in lines {
        roff.control("TP", []);
        roff.text([bold(*line)]);
        roff.text([roman(*text)]);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_examples() {
        for command in crate::command().get_subcommands() {
            let page = format!("flannelctl-{}", command.get_name());
            assert!(!examples(&page).is_empty(), "{page}");
        }
        for page in ["flanneld", "flannelctl"] {
            assert!(examples(page).len() >= 3, "{page}");
        }
    }

    /// The words of an example after the program's name, without what only the shell interprets.
    fn words(example: &str) -> Vec<&str> {
        let typed = example.trim_start_matches("source <(").trim_end_matches(')');
        typed
            .split(" > ")
            .next()
            .unwrap_or_default()
            .split(' ')
            .skip_while(|word| !["flanneld", "flannelctl", "flannel"].contains(word))
            .skip(1)
            .collect()
    }

    #[test]
    fn examples_are_accepted_command_lines() {
        for (page, lines) in EXAMPLES {
            for (line, _) in *lines {
                let words = words(line);
                if *page == "flanneld" {
                    let mut variables = line.split(' ').map_while(|word| word.split_once('='));
                    let variable = variables.next();
                    let value =
                        |name: &str| Some(variable.filter(|(have, _)| *have == name)?.1.into());
                    let args = words.iter().map(Into::into);
                    let read = options::read(args, &value, &[]);
                    assert!(matches!(read, options::Invocation::Run(_)), "{line}: {read:?}");
                } else {
                    let args = std::iter::once("flannelctl").chain(words);
                    let matches = crate::command().try_get_matches_from(args);
                    let chosen = matches.unwrap_or_else(|e| panic!("{line}: {e}"));
                    let name = chosen.subcommand_name().unwrap_or_default();
                    assert!(
                        *page == "flannelctl" || *page == format!("flannelctl-{name}"),
                        "{page} shows {line}"
                    );
                }
            }
        }
    }
}
