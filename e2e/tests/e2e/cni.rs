//! Tests of the CNI plugin with old and new releases of the reference plugins, and with the real daemon.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::{
    Cni, CniVersion, FlanneldOptions, Host, Lab, Netns, PingOptions, Store, binaries, ping, until,
};
use serde_json::{Value, json};

const NET_CONF: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;

/// A host with a simulated container runtime and its CNI configuration.
struct Node<'a> {
    host: &'a Host,
    cni: Cni,
    conf: Value,
}

impl<'a> Node<'a> {
    /// Returns a node with the CNI configuration of the manifests.
    fn new(host: &'a Host, version: CniVersion, cni_version: &str) -> Result<Node<'a>> {
        let folder = host.folder()?;
        let conf = json!({
            "name": "cbr0", "cniVersion": cni_version, "type": "flannel",
            "delegate": {"hairpinMode": true, "isDefaultGateway": true},
            "subnetFile": host.subnet_file()?, "dataDir": folder.join("cni"), "ipam": {"dataDir": folder.join("ipam")},
        });
        Ok(Node {
            host,
            cni: host.cni(&binaries::own("flannel")?, &binaries::cni(version)?),
            conf,
        })
    }

    fn conf(&self, key: &str, value: &Value) -> Value {
        let mut conf = self.conf.clone();
        conf[key] = value.clone();
        conf
    }

    /// Creates a pod, and calls ADD for the pod's interface. Returns the pod's network namespace and ADD's result.
    fn pod(&self, name: &str) -> Result<(Netns, Value)> {
        let pod = self.host.empty_pod(name)?;
        let answer = self.cni.call("ADD", Some(&pod), "eth0", &self.conf)?;
        ensure!(
            answer.stderr.is_empty(),
            "it is not quiet: {}",
            answer.stderr
        );
        Ok((pod, answer.ok()?))
    }

    fn del(&self, pod: &Netns, interface: &str) -> Result<()> {
        self.cni
            .call("DEL", Some(pod), interface, &self.conf)?
            .ok()
            .map(drop)
    }

    /// Lists the objects that pods left: interfaces, reserved addresses, the plugin's files.
    fn left(&self) -> Result<Vec<String>> {
        let folder = self.host.folder()?;
        let mut left: Vec<String> = self
            .host
            .netns()
            .links()?
            .into_iter()
            .map(|link| link.ifname)
            .filter(|name| name.starts_with("veth"))
            .collect();
        left.extend(names(&folder.join("cni")));
        left.extend(
            names(&folder.join("ipam/cbr0"))
                .into_iter()
                .filter(|name| name.parse::<IpAddr>().is_ok()),
        );
        Ok(left)
    }
}

fn names(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Returns the addresses in a CNI result.
fn addresses(result: &Value) -> Result<Vec<IpAddr>> {
    let ips = result["ips"]
        .as_array()
        .with_context(|| format!("no addresses: {result}"))?;
    let address = |ip: &Value| {
        ip["address"]
            .as_str()
            .and_then(|text| text.split_once('/')?.0.parse().ok())
    };
    ips.iter()
        .map(|ip| address(ip).with_context(|| format!("no address: {ip}")))
        .collect()
}

/// Adds pods on two nodes, checks that the pods reach each other, and deletes the pods.
fn serves(version: CniVersion, cni_version: &str) -> Result<()> {
    Lab::run("cni", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(NET_CONF)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--ip-masq");
        let nodes = hosts
            .iter()
            .map(|host| Node::new(host, version, cni_version))
            .collect::<Result<Vec<_>>>()?;
        let _first = hosts[0].flanneld(&options)?;

        // The second node's first pod comes before its daemon: the runtime repeats ADD until it succeeds.
        let early = hosts[1].empty_pod("early")?;
        let (answer, mut daemon) = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    let answer = nodes[1]
                        .cni
                        .call("ADD", Some(&early), "eth0", &nodes[1].conf)?;
                    if answer.code() != 11 {
                        return Ok::<_, anyhow::Error>(answer);
                    }
                }
            });
            let daemon = hosts[1].flanneld(&options);
            (waiting.join(), daemon)
        });
        let daemon = daemon
            .as_mut()
            .map_err(|error| anyhow::anyhow!("{error:#}"))?;
        let result = answer.map_err(|_| anyhow::anyhow!("ADD panicked"))??.ok()?;
        let (pod, other) = nodes[0].pod("p1")?;
        for address in addresses(&result)? {
            until("pods reach each other at full MTU", || {
                ping(
                    &pod,
                    address,
                    &PingOptions::default().packet(if address.is_ipv4() { 1450 } else { 1430 }),
                )
                .is_ok_and(|time| time.is_some())
            })?;
        }
        ensure!(addresses(&other)?.len() == 2, "{other}");

        second_interface(&nodes[0], &pod)?;
        checked(&nodes[0], &pod, &other, version)?;
        if cni_version == "1.1.0" {
            collected(&nodes[0], &pod)?;
            nodes[1]
                .cni
                .call("STATUS", None, "", &nodes[1].conf)?
                .ok()?;
            daemon.kill()?;
            nodes[1]
                .cni
                .call("STATUS", None, "", &nodes[1].conf)?
                .ok()?;
        }
        // Pods start and end while a daemon is dead or being replaced.
        let (late, _) = nodes[1].pod("late")?;
        if cni_version == "1.1.0" {
            hosts[1].netns().ip("link delete flannel.1")?;
            let answer = nodes[1].cni.call("STATUS", None, "", &nodes[1].conf)?;
            ensure!(
                answer.code() == 50
                    && answer.output.to_string().contains(
                        "the device flannel.1 does not exist, and flanneld is not running"
                    ),
                "{answer:?}"
            );
        }
        for (node, pods) in [(&nodes[0], vec![&pod]), (&nodes[1], vec![&early, &late])] {
            for pod in pods {
                node.del(pod, "eth0")?;
                node.del(pod, "eth0")?;
            }
            ensure!(node.left()?.is_empty(), "DEL left {:?}", node.left()?);
        }
        Ok(())
    })
}

/// Checks that ADD and DEL of a second interface of the same container do not affect the first interface.
fn second_interface(node: &Node<'_>, pod: &Netns) -> Result<()> {
    let second = node.conf("delegate", &json!({"hairpinMode": true}));
    node.cni.call("ADD", Some(pod), "net1", &second)?.ok()?;
    for _ in 0..2 {
        node.del(pod, "net1")?;
    }
    ensure!(
        pod.link("net1")?.is_none() && pod.link("eth0")?.is_some(),
        "the wrong interface was removed"
    );
    Ok(())
}

/// Checks that CHECK passes for the objects that ADD created, and fails after a change to these objects.
fn checked(node: &Node<'_>, pod: &Netns, result: &Value, version: CniVersion) -> Result<()> {
    let conf = node.conf("prevResult", result);
    node.cni.call("CHECK", Some(pod), "eth0", &conf)?.ok()?;
    if version == CniVersion::V111 {
        // The old bridge plugin itself fails for the same, unchanged interface.
        let saved = std::fs::read_to_string(node.host.folder()?.join("cni").join(pod.name()))?;
        let mut own: Value = serde_json::from_str(&saved)?;
        own["prevResult"] = result.clone();
        let folder = binaries::cni(version)?;
        let answer = node.host.cni(&folder.join("bridge"), &folder).call(
            "CHECK",
            Some(pod),
            "eth0",
            &own,
        )?;
        ensure!(
            answer.output.to_string().contains("Expected Route"),
            "the old bridge is right today: {answer:?}"
        );
    }
    pod.ip("address flush dev eth0 scope global")?;
    let answer = node.cni.call("CHECK", Some(pod), "eth0", &conf)?;
    ensure!(
        answer.code() != 0,
        "an interface without its addresses passed"
    );
    Ok(())
}

/// Checks that GC releases the address and removes the files of a pod that ended without DEL.
fn collected(node: &Node<'_>, living: &Netns) -> Result<()> {
    let (lost, result) = node.pod("lost")?;
    let address = addresses(&result)?[0].to_string();
    let name = lost.name().to_owned();
    // The processes and the namespace are gone, and no DEL came.
    std::process::Command::new("ip")
        .args(["netns", "del", &name])
        .status()?;
    ensure!(
        node.left()?.contains(&address),
        "{address} is not reserved: {:?}",
        node.left()?
    );
    let conf = node.conf(
        "cni.dev/valid-attachments",
        &json!([{"containerID": living.name(), "ifname": "eth0"}]),
    );
    node.cni.call("GC", None, "", &conf)?.ok()?;
    let left = node.left()?;
    ensure!(
        !left.contains(&address)
            && !left.contains(&name)
            && left.contains(&living.name().to_owned()),
        "{left:?}"
    );
    Ok(())
}

/// Runs the commands of docs/cni.md on a host where `/run`, `/opt` and `/var/lib` contain only the files that the document requires.
#[test]
fn documented_cni_commands_work() {
    Lab::run("cni-page", |lab| {
        let host = lab.host("h1", &[])?;
        let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cni.md"))?;
        let (_, block) = page.split_once("## Calling it manually").and_then(|(_, rest)| rest.split_once("```sh\n")).context("the page has no commands")?;
        let (commands, _) = block.split_once("```").context("the block does not end")?;
        let (bin, own) = (binaries::cni(CniVersion::V191)?, binaries::own("flannel")?);
        // Opens the programs before tmpfs covers their folders.
        let script = format!(
            "exec 8<{own} 9<{bin}/bridge 7<{bin}/host-local\nfor folder in /run /opt /var/lib; do mount -t tmpfs tmpfs $folder; done\n\
             mkdir -p /opt/cni/bin /run/flannel; cd /run\n\
             cat <&8 > /opt/cni/bin/flannel; cat <&9 > /opt/cni/bin/bridge; cat <&7 > /opt/cni/bin/host-local; chmod +x /opt/cni/bin/*\n\
             printf 'FLANNEL_NETWORK=10.5.0.0/16\\nFLANNEL_SUBNET=10.5.7.1/24\\nFLANNEL_MTU=1450\\nFLANNEL_IPMASQ=true\\n' > /run/flannel/subnet.env\n\
             {commands}\nls /var/lib/cni/flannel\n",
            own = own.display(),
            bin = bin.display()
        );
        let output = host.netns().exec("unshare", &["--mount", "sh", "-ec", script.as_str()])?;
        let result: Value = serde_json::from_str(&output).with_context(|| format!("more than ADD's result, or something is left: {output}"))?;
        ensure!(addresses(&result)? == ["10.5.7.2".parse::<IpAddr>()?], "{result}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn current_reference_plugins_connect_pods() {
    serves(CniVersion::V191, "1.1.0").unwrap();
}

#[test]
fn distribution_reference_plugins_connect_pods() {
    serves(CniVersion::V111, "1.0.0").unwrap();
}
