//! The commands in the documents for hosts. A node with etcd runs those that can run in a lab. For each other one, a reason is listed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use lab::{Etcd, EtcdOptions, EtcdVersion, FlanneldOptions, Lab, Uplink, binaries, until_ok};

use super::{read_repository_file, repository_path, require_pages_have_exactly_these_commands};
use crate::doctor::node::{Node, wait_all_nodes_healthy};
use crate::install::operator::shell_command_blocks;

/// The documents about Kubernetes and the doctor's commands have their own tests (`pages` and `doctor`).
const PAGES: &[&str] = &[
    "README.md",
    "docs/quick-start.md",
    "docs/docker.md",
    "docs/stores.md",
    "docs/operations.md",
    "docs/upgrading.md",
    "docs/wireguard.md",
    "docs/rules.md",
    "docs/flannelctl.md",
    "docs/doctor-checks.md",
    "docs/uninstall.md",
    "docs/troubleshooting.md",
    "docs/cni.md",
];

/// In this order. The first command writes the network configuration to etcd. The daemon starts after the last one.
const BEFORE: &[&str] = &[
    r#"etcdctl put /coreos.com/network/config '{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}'"#,
    "sed -i 's|^FLANNELD_ETCD_ENDPOINTS=.*|FLANNELD_ETCD_ENDPOINTS=http://10.0.0.1:2379|' /etc/default/flanneld",
    "sed -i 's|^#FLANNELD_IFACE=auto|FLANNELD_IFACE=auto|' /etc/default/flanneld",
    "systemctl daemon-reload",
];
const WHILE_IT_RUNS: &[&str] = &[
    "cat /run/flannel/subnet.env",
    "ip route show proto 241",
    "flannelctl leases --etcd-endpoints=http://10.0.0.1:2379",
    "flannelctl leases --etcd-endpoints=http://10.0.0.1:2379 --long",
    "flannelctl leases --etcd-endpoints=http://10.0.0.1:2379 --json",
    "etcdctl get /coreos.com/network/config",
    "etcdctl get --prefix --keys-only /coreos.com/network/subnets/",
    "flannelctl reserve --etcd-endpoints=http://10.0.0.1:2379 10.244.7.0/24 --address 192.168.56.107",
    "etcdctl get --print-value-only /coreos.com/network/subnets/10.244.7.0-24",
    "key=/coreos.com/network/subnets/10.244.7.0-24",
    "etcdctl get --print-value-only $key | etcdctl put $key",
    r#"etcdctl put /coreos.com/network/subnets/10.244.7.0-24 '{"PublicIP":"192.168.56.107"}'"#,
    "etcdctl role add flannel",
    "etcdctl role grant-permission flannel read /coreos.com/network/config",
    "etcdctl role grant-permission flannel readwrite --prefix /coreos.com/network/subnets/",
    "flannelctl status",
    "flannelctl dashboard",
    "flannelctl doctor",
    "grep MTU /run/flannel/subnet.env",
    "flannelctl support-bundle --list",
    "flannelctl support-bundle --file /tmp/node-1.tar.gz",
    "mkdir -p -m 700 /var/lib/flannel",
    r"printf '\n%s\n' WIREGUARD_KEY_FILE=/var/lib/flannel/wgkey >> /etc/default/flanneld",
];
const AFTERWARDS: &[&str] = &["flannelctl cleanup --dry-run", "flannelctl cleanup"];

/// Commands that the test does not run, and the reasons.
const NOT_HERE: &[(&str, &str)] = &[
    (
        r#"iptables -t nat -D POSTROUTING -m comment --comment "flanneld 1 masq" -j FLANNEL-POSTRTG-1"#,
        "a host with two networks; the names of slot 1 are in `traffic::two_networks`",
    ),
    ("iptables -t nat -F FLANNEL-POSTRTG-1 && iptables -t nat -X FLANNEL-POSTRTG-1", "the same"),
    (
        r#"iptables -D FORWARD -m comment --comment "flanneld 1 forward" -j FLANNEL-FWD-1"#,
        "the same",
    ),
    ("iptables -F FLANNEL-FWD-1 && iptables -X FLANNEL-FWD-1", "the same"),
    ("nft delete table ip flannel-ipv4-1", "the same"),
    ("make demo", "the lab of the tests is the demonstration's; `lab::` runs it"),
    ("make demo STORE=etcd", "the same"),
    ("make demo BACKEND=host-gw", "the same"),
    ("make demo ARGS=--vagrant", "the same"),
    ("make demo KUBE=1", "the same"),
    ("make demo STATUS=1", "the same"),
    ("make demo ARGS=--keep", "the same"),
    ("make demo ARGS=--remove", "the same"),
    ("make test", "minutes: the tests themselves"),
    ("kubectl apply -f conf/kube-flannel.yml", "`install::pages` runs it"),
    ("make install", "it builds for minutes; `flanneld/tests/conf.rs` reads what it installs"),
    ("$EDITOR /etc/default/flanneld", "an operator does"),
    (
        "systemctl daemon-reload && systemctl enable --now flanneld",
        "there is no systemd here; `e2e/soak/services.sh` runs the unit",
    ),
    ("systemctl enable --now flanneld", "the same"),
    ("systemctl status flanneld", "the same"),
    ("systemctl disable --now flanneld", "the same"),
    ("systemctl restart flanneld", "the same"),
    ("make install && systemctl daemon-reload && systemctl restart flanneld", "the same"),
    (
        "make install DESTDIR=/tmp/flannel && tar -C /tmp/flannel -cf flannel.tar usr etc",
        "it builds for minutes",
    ),
    ("tar -C / -xf flannel.tar", "it would change this machine"),
    ("tar -C / -xf flannel.tar usr", "the same"),
    ("mkdir -p /srv/flannel", "`directory::` has a directory of its own"),
    (
        r#"echo '{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}' > /srv/flannel/config"#,
        "the same",
    ),
    ("flanneld --subnet-dir=/srv/flannel --iface-cidr=192.168.56.0/24", "the same"),
    ("flanneld --subnet-dir=/srv/flannel", "the same"),
    ("flannelctl leases --subnet-dir=/srv/flannel", "the same"),
    ("flannelctl release --subnet-dir=/srv/flannel 10.244.7.0-24", "the same"),
    (
        "flannelctl release --etcd-endpoints=http://10.0.0.1:2379 10.244.7.0-24",
        "it asks on a terminal; `lease::` releases leases",
    ),
    ("flannelctl release --etcd-endpoints=http://10.0.0.1:2379 --force 10.244.7.0-24", "the same"),
    (
        "flannelctl reserve --etcd-endpoints=http://10.0.0.1:2379 node-7",
        "the node has another name; `lease::` reserves leases",
    ),
    ("etcdctl watch --prefix /coreos.com/network/subnets/", "it does not end"),
    ("etcdctl user add flannel", "it asks for a password; `etcd::` has users"),
    ("etcdctl user grant-role flannel flannel", "the same"),
    (
        "kubectl -n kube-flannel exec daemonset/kube-flannel-ds -c kube-flannel -- flannelctl leases --kube-subnet-mgr",
        "`kube::rights` lists leases in a pod",
    ),
    (
        "kubectl get node node-1 -o yaml | grep flannel.alpha.coreos.com",
        "the annotations are in `kube::golden`",
    ),
    ("FLANNELD_HEALTHZ_IP=127.0.0.1", "a line of /etc/default/flanneld"),
    ("FLANNELD_HEALTHZ_PORT=8471", "the same"),
    ("ssh -L 8474:127.0.0.1:8474 node-1", "there is no SSH server here"),
    (
        "iptables -t nat -S FLANNEL-POSTRTG; iptables -S FLANNEL-FWD; iptables -t raw -S FLANNEL-ENCAP",
        "the chains are in `rules::`",
    ),
    ("nft list table ip flannel-ipv4", "the same"),
    ("flannelctl support-bundle", "`canary::` reads a bundle; here it is written to a named file"),
    ("flannelctl dashboard --node node-1", "`kube::all_doctors` reaches the page of a node"),
    ("flannelctl support-bundle --node node-1", "`kube::all_doctors` collects it in a cluster"),
    (
        "kubectl -n kube-flannel exec POD -c kube-flannel -- flannelctl support-bundle --file=- > node-1.tar.gz",
        "the same",
    ),
    (
        "crictl exec $(crictl ps -q --name kube-flannel) flannelctl doctor",
        "there is no crictl here",
    ),
    (
        "kubectl -n kube-flannel exec kube-flannel-ds-abcde -c kube-flannel -- flannelctl doctor",
        "the pod has another name; `kube::doctor` runs it",
    ),
    (
        "kubectl -n kube-flannel logs kube-flannel-ds-abcde -c kube-flannel --previous",
        "no pod crashes there",
    ),
    (
        "kubectl -n kube-flannel get pods -o wide --field-selector spec.nodeName=node-7",
        "the node has another name",
    ),
    ("kubectl get endpointslices -l kubernetes.io/service-name=my-service", "an example's name"),
    (
        "kubectl -n kube-system get pods -l k8s-app=kube-dns -o wide",
        "the clusters of these tests have no CoreDNS; `make conformance` has",
    ),
    ("flannelctl probe 10.244.3.7:8080", "an example's address; `probe::` tries ports"),
    ("flannelctl probe 10.96.12.34:80", "the same"),
    ("flannelctl probe 10.96.0.10:53", "the same"),
    (
        r"printf '\n%s\n' FLANNELD_IFACE=enp0s8 >> /etc/default/flanneld",
        "`doctor::trap` types the remedies of the trap",
    ),
    (
        "kubectl -n kube-flannel exec daemonset/kube-flannel-ds -c kube-flannel -- flannelctl doctor",
        "`kube::doctor` types the remedies of the trap",
    ),
    (
        r#"kubectl -n kube-flannel get daemonset kube-flannel-ds -o json | sed -E -e '/"resourceVersion":/d' -e 's|"--iface=enp0s3"|"--iface=enp0s8"|' | kubectl -n kube-flannel replace -f -"#,
        "the same",
    ),
    (
        "kubectl -n kube-flannel set env daemonset/kube-flannel-ds -c kube-flannel FLANNELD_IFACE=enp0s8",
        "the same",
    ),
    (
        "kubectl -n kube-flannel rollout status daemonset/kube-flannel-ds",
        "`install::pages` runs it",
    ),
    ("tcpdump -ni eth1 udp port 8472", "it does not end; `packet_path::` has captures"),
    ("tcpdump -ni flannel.1", "the same"),
    ("tcpdump -ni cni0", "the same"),
    ("iptables -S FORWARD | head -3", "the chains are in `rules::`"),
    (
        "ping -M do -s 1422 <address of a pod on another node>",
        "an example's address; `traffic::` sends packets of full size",
    ),
    ("tracepath <address of another node>", "the same"),
    ("ip netns add try", "`cni::` runs the commands of its page"),
    (r#"echo '{"name":"cbr0","cniVersion":"1.0.0","type":"flannel"}' > try.json"#, "the same"),
    (
        "export CNI_CONTAINERID=try CNI_NETNS=/run/netns/try CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin",
        "the same",
    ),
    ("CNI_COMMAND=ADD /opt/cni/bin/flannel < try.json", "the same"),
    ("CNI_COMMAND=DEL /opt/cni/bin/flannel < try.json", "the same"),
    ("ip netns del try", "the same"),
    (
        "flannelctl cleanup --subnet-file=/run/flannel/second.env",
        "`two_networks::` cleans up one of two",
    ),
    (
        "rm /usr/local/bin/flanneld /usr/local/bin/flannelctl /usr/local/bin/flannel-lab /usr/local/bin/mk-docker-opts.sh",
        "it would change this machine",
    ),
    ("rm /usr/local/lib/systemd/system/flanneld.service /etc/default/flanneld", "the same"),
    ("rm -r /usr/local/share/flannel /usr/local/share/man/man8/flannel*", "the same"),
    (
        "rm /usr/local/share/{bash-completion/completions/flannel*,zsh/site-functions/_flannel*,fish/vendor_completions.d/flannel*}",
        "the same",
    ),
];

/// Its code blocks contain a file and, in several parts, a script. `flanneld/tests/docker_opts.rs` runs the program that its commands call.
const DOCKER: &str = "docs/docker.md";

#[test]
fn host_commands_are_run_or_excluded_with_a_reason() -> Result<()> {
    let mut on_pages = BTreeSet::new();
    for file in PAGES.iter().filter(|file| **file != DOCKER) {
        let page = read_repository_file(file)?;
        on_pages.extend(shell_command_blocks(&page).into_iter().flatten());
    }
    let run = [BEFORE, WHILE_IT_RUNS, AFTERWARDS].concat();
    require_pages_have_exactly_these_commands(&on_pages, &run, NOT_HERE)?;
    ensure!(
        !shell_command_blocks(&read_repository_file(DOCKER)?).is_empty(),
        "{DOCKER} has no commands"
    );
    Ok(())
}

#[test]
fn documented_host_commands_work_with_etcd() -> Result<()> {
    Lab::run("commands for hosts", |lab| {
        let lan = lab.create_switch("lan")?;
        let hosts = lab.create_hosts(&lan, 2)?;
        let machine = lab.create_host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&machine], &EtcdOptions::default().interface("enp0s8"))?;
        let store = etcd.store()?;
        let endpoint = etcd
            .client_on_first_member()?
            .daemon_endpoints()
            .first()
            .context("no endpoint")?
            .clone();
        // Nothing is written to the machine's own /tmp.
        let bundle = lab.ensure_folder("bundle")?.join("node-1.tar.gz");
        let here = |command: &str| {
            command
                .replace("http://10.0.0.1:2379", &endpoint)
                .replace("/tmp/node-1.tar.gz", &bundle.display().to_string())
        };
        let options = FlanneldOptions::bare();
        let mut nodes = hosts
            .iter()
            .map(|host| Node::new(lab, host, &options, &store))
            .collect::<Result<Vec<_>>>()?;
        for node in &mut nodes {
            // As it is installed.
            std::fs::copy(
                repository_path("conf/default/flanneld"),
                node.files.join("default/flanneld"),
            )?;
            std::os::unix::fs::symlink(
                binaries::etcd_program("etcdctl", EtcdVersion::Distributed)?,
                node.files.join("bin/etcdctl"),
            )?;
            node.variables.push(("ETCDCTL_ENDPOINTS", endpoint.clone()));
            for command in BEFORE {
                node.run(&format!("export ETCDCTL_ENDPOINTS; {}", here(command)))?;
            }
            node.start_without_waiting()?;
        }
        for node in &mut nodes {
            until_ok("it is ready", || node.wait_ready())?;
        }
        wait_all_nodes_healthy(&mut nodes)?;
        let node = &mut nodes[0];
        // One shell, as an operator has it.
        let script: Vec<String> = WHILE_IT_RUNS.iter().map(|command| here(command)).collect();
        node.run(&format!("export ETCDCTL_ENDPOINTS\n{}", script.join("\n")))?;
        node.stop()?;
        for command in AFTERWARDS {
            node.run(&here(command))?;
        }
        Ok(())
    })
}
