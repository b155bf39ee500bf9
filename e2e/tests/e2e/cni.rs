//! Tests of the CNI plugin with old and new releases of the reference plugins, and with the real daemon.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lab::{Cni, CniVersion, Host, Lab, Netns, PingOptions, Scene, binaries, ping_address, until};
use serde_json::{Value, json};

use crate::healing::scenarios;

const NET_CONF: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;

/// A host with a simulated container runtime and its CNI configuration.
struct Runtime {
    host: Host,
    cni: Cni,
    conf: Value,
}

impl Runtime {
    /// Takes the CNI configuration of the manifests.
    fn new(host: &Host, version: CniVersion, cni_version: &str) -> Result<Runtime> {
        let folder = host.folder()?;
        let conf = json!({
            "name": "cbr0", "cniVersion": cni_version, "type": "flannel",
            "delegate": {"hairpinMode": true, "isDefaultGateway": true},
            "subnetFile": host.subnet_file()?, "dataDir": folder.join("cni"), "ipam": {"dataDir": folder.join("ipam")},
        });
        let cni = host
            .cni(&binaries::flannel_binary("flannel")?, &binaries::cni_plugins_folder(version)?);
        Ok(Runtime { host: host.clone(), cni, conf })
    }

    fn conf_with(&self, key: &str, value: &Value) -> Value {
        let mut conf = self.conf.clone();
        conf[key] = value.clone();
        conf
    }

    /// Creates a pod, and calls ADD for its interface. The result is ADD's.
    fn create_and_add_pod(&self, name: &str) -> Result<(Netns, Value)> {
        let pod = self.host.create_empty_pod_netns(name)?;
        let answer = self.cni.call("ADD", Some(&pod), "eth0", &self.conf)?;
        ensure!(answer.stderr.is_empty(), "it is not quiet: {}", answer.stderr);
        Ok((pod, answer.ok()?))
    }

    /// Calls DEL twice, because a runtime repeats it.
    fn delete_twice(&self, pod: &Netns, interface: &str) -> Result<()> {
        (0..2).try_for_each(|_| {
            self.cni.call("DEL", Some(pod), interface, &self.conf)?.ok().map(drop)
        })
    }

    /// The code of STATUS.
    fn status_code(&self) -> Result<u64> {
        Ok(self.cni.call("STATUS", None, "", &self.conf)?.code())
    }

    /// What pods left: interfaces, reserved addresses, the plugin's files.
    fn list_pod_state(&self) -> Result<Vec<String>> {
        let folder = self.host.folder()?;
        let names = |folder: PathBuf| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
        };
        let links = self.host.netns().links()?.into_iter().map(|link| link.ifname);
        let left = links.filter(|name| name.starts_with("veth")).chain(names(folder.join("cni")));
        Ok(left
            .chain(names(folder.join("ipam/cbr0")).filter(|name| name.parse::<IpAddr>().is_ok()))
            .collect())
    }
}

fn addresses_in_cni_result(result: &Value) -> Result<Vec<IpAddr>> {
    let ips = result["ips"].as_array().with_context(|| format!("no addresses: {result}"))?;
    let address =
        |ip: &Value| ip["address"].as_str().and_then(|text| text.split_once('/')?.0.parse().ok());
    ips.iter().map(|ip| address(ip).with_context(|| format!("no address: {ip}"))).collect()
}

scenarios! { reference_plugins_pass_pod_life_cycle;
    current_reference_plugins_connect_pods => (CniVersion::V191, "1.1.0"),
    distribution_reference_plugins_connect_pods => (CniVersion::V111, "1.0.0"),
}

/// Adds pods on two nodes, which reach each other, and deletes them.
fn reference_plugins_pass_pod_life_cycle((version, cni_version): (CniVersion, &str)) -> Result<()> {
    let is_current = cni_version == "1.1.0";
    Scene::with_title("cni").net(NET_CONF).daemon_arg("--ip-masq").without_daemons().run(|s| {
        let [near, far] = [0, 1].map(|number| Runtime::new(&s[number], version, cni_version));
        let (near, far) = (near?, far?);
        s[0].start_daemon()?;
        // The second node's first pod comes before its daemon: the runtime repeats ADD until it succeeds.
        let early = far.host.create_empty_pod_netns("early")?;
        let add = || far.cni.call("ADD", Some(&early), "eth0", &far.conf);
        ensure!(add()?.code() == 11, "ADD succeeds without a daemon");
        s[1].start_daemon()?;
        let result = add()?.ok()?;
        let (pod, other) = near.create_and_add_pod("p1")?;
        for address in addresses_in_cni_result(&result)? {
            let options =
                PingOptions::default().packet_length(if address.is_ipv4() { 1450 } else { 1430 });
            until("pods reach each other at full MTU", || {
                ping_address(&pod, address, &options).is_ok_and(|time| time.is_some())
            })?;
        }
        ensure!(addresses_in_cni_result(&other)?.len() == 2, "{other}");

        // ADD and DEL of a second interface of the same container do not affect the first interface.
        let second = near.conf_with("delegate", &json!({"hairpinMode": true}));
        near.cni.call("ADD", Some(&pod), "net1", &second)?.ok()?;
        near.delete_twice(&pod, "net1")?;
        ensure!(
            pod.link("net1")?.is_none() && pod.link("eth0")?.is_some(),
            "the wrong interface was removed"
        );
        // CHECK passes for the objects that ADD created, and fails after a change to these objects.
        let conf = near.conf_with("prevResult", &other);
        near.cni.call("CHECK", Some(&pod), "eth0", &conf)?.ok()?;
        pod.run_ip_batch("address flush dev eth0 scope global")?;
        ensure!(
            near.cni.call("CHECK", Some(&pod), "eth0", &conf)?.code() != 0,
            "an interface without its addresses passed"
        );
        if is_current {
            require_gc_frees_lost_pod(&near, &pod)?;
            ensure!(far.status_code()? == 0);
        }
        // Pods start and end while a daemon is dead or being replaced.
        s[1].kill_daemon()?;
        let (late, _) = far.create_and_add_pod("late")?;
        if is_current {
            ensure!(far.status_code()? == 0);
            s[1].sh("ip link delete flannel.1")?;
            ensure!(far.status_code()? == 50);
        }
        for (runtime, pods) in [(&near, vec![&pod]), (&far, vec![&early, &late])] {
            pods.iter().try_for_each(|pod| runtime.delete_twice(pod, "eth0"))?;
            ensure!(
                runtime.list_pod_state()?.is_empty(),
                "DEL left {:?}",
                runtime.list_pod_state()?
            );
        }
        Ok(())
    })
}

/// GC releases the address and removes the files of a pod that ended without DEL.
fn require_gc_frees_lost_pod(node: &Runtime, living: &Netns) -> Result<()> {
    let (lost, result) = node.create_and_add_pod("lost")?;
    let (address, name) =
        (addresses_in_cni_result(&result)?[0].to_string(), lost.name().to_owned());
    // The processes and the namespace are gone, and no DEL came.
    std::process::Command::new("ip").args(["netns", "del", &name]).status()?;
    ensure!(
        node.list_pod_state()?.contains(&address),
        "{address} is not reserved: {:?}",
        node.list_pod_state()?
    );
    let valid = json!([{"containerID": living.name(), "ifname": "eth0"}]);
    node.cni.call("GC", None, "", &node.conf_with("cni.dev/valid-attachments", &valid))?.ok()?;
    let left = node.list_pod_state()?;
    ensure!(
        !left.contains(&address)
            && !left.contains(&name)
            && left.contains(&living.name().to_owned()),
        "{left:?}"
    );
    Ok(())
}

/// The host's `/run`, `/opt` and `/var/lib` contain only the files that docs/cni.md requires.
#[test]
fn documented_cni_commands_work() -> Result<()> {
    Lab::run("cni-page", |lab| {
        let host = lab.create_host("h1", &[])?;
        let page =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cni.md"))?;
        let (_, block) = page
            .split_once("## Calling it manually")
            .and_then(|(_, rest)| rest.split_once("```sh\n"))
            .context("the page has no commands")?;
        let (commands, _) = block.split_once("```").context("the block does not end")?;
        let (bin, own) =
            (binaries::cni_plugins_folder(CniVersion::V191)?, binaries::flannel_binary("flannel")?);
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
        let result: Value = serde_json::from_str(&output)
            .with_context(|| format!("more than ADD's result, or something is left: {output}"))?;
        ensure!(addresses_in_cni_result(&result)? == ["10.5.7.2".parse::<IpAddr>()?], "{result}");
        Ok(())
    })
}
