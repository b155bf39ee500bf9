//! Ruby evaluates the Vagrantfile with a stand-in for Vagrant, and bash parses the machines' scripts.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{read_repository_file, repository_path};

fn vagrantfile_machines(nat: &str) -> Result<Vec<Value>> {
    let output = Command::new("ruby")
        .arg(repository_path("e2e/tests/e2e/install/vagrantfile.rb"))
        .arg(repository_path("conf/vagrant/Vagrantfile"))
        .env("NAT", nat)
        .output()
        .context("ruby, of the Debian package ruby")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// All scripts of a machine.
fn joined_scripts(machine: &Value) -> Result<String> {
    let scripts = machine["scripts"].as_array().context("scripts")?;
    let texts = scripts.iter().map(|script| script["text"].as_str());
    Ok(texts.collect::<Option<Vec<_>>>().context("texts")?.join("\n"))
}

#[test]
fn vagrantfile_describes_a_lab_that_installs_flannel() -> Result<()> {
    let machines = vagrantfile_machines("")?;
    let page = read_repository_file("docs/vagrant.md")?;
    let manifest = read_repository_file("conf/kube-flannel.yml")?;
    ensure!(machines.len() == 3, "{machines:#?}");
    for (number, machine) in machines.iter().enumerate() {
        let address = format!("192.168.56.{}", 11 + number);
        ensure!(machine["networks"] == serde_json::json!([address]), "{machine}");
        let mut ours = Vec::new();
        for script in machine["scripts"].as_array().context("scripts")? {
            let text = script["text"].as_str().context("a text")?;
            let checked = Command::new("bash").args(["-n", "-c", text]).output()?;
            ensure!(checked.status.success() && checked.stderr.is_empty(), "{text}: {checked:?}");
            ensure!(text.starts_with("set -e\n"), "continues after a failure: {text}");
            ours.push(script["arguments"] == serde_json::json!([address]));
        }
        ensure!(ours.contains(&true), "no script has the address: {machine}");
        let text = joined_scripts(machine)?;
        for archive in ["flannel.tar", "flannel-cni-plugin.tar"] {
            ensure!(
                text.contains(&format!("import /vagrant/{archive}")) && page.contains(archive),
                "{archive}"
            );
        }
    }
    let (control, workers) = machines.split_first().context("a control plane")?;
    let control = joined_scripts(control)?;
    let network = "10.244.0.0/16";
    ensure!(
        control.contains(&format!("--pod-network-cidr={network}"))
            && manifest.contains(&format!("\"Network\": \"{network}\"")),
        "the manifest has another network: {control}"
    );
    ensure!(control.contains("apply -f /vagrant/conf/kube-flannel.yml"), "{control}");
    for worker in workers {
        let text = joined_scripts(worker)?;
        let join = text
            .lines()
            .find_map(|line| line.strip_prefix("kubeadm join 192.168.56.11:6443 "))
            .context(text.clone())?;
        let token = join.split(' ').find(|word| word.starts_with("--token=")).context("a token")?;
        ensure!(control.contains(token), "another token: {token}");
    }
    Ok(())
}

#[test]
fn vagrantfile_numbers_the_nat_networks_on_request() -> Result<()> {
    let networks = |nat: &str| -> Result<Vec<Value>> {
        Ok(vagrantfile_machines(nat)?.iter().map(|machine| machine["settings"].clone()).collect())
    };
    let found = networks("distinct")?;
    for (number, settings) in found.iter().enumerate() {
        let text = settings.to_string();
        ensure!(text.contains(&format!("10.0.{}.0/24", number + 2)), "{text}");
    }
    ensure!(networks("")?.iter().all(|settings| settings == &serde_json::json!([])));
    Ok(())
}
