//! flanneld's rules equal Go flannel's exactly, use the host's variant of iptables, and use random ports where possible.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::{Node, Programs, Scene, Xtables};

use crate::healing::scenarios;

use super::node::{
    Applier, IptablesLegacy, IptablesNft, Nftables, firewall_rules, has_flannel_rules,
    logged_warnings_and_errors, masquerading_node_scene, run_on_stopped_masquerading_node,
};

scenarios! { iptables_rules_equal_those_of_go_flannel;
    masq_dual_rules_equal_those_of_go_flannel => ("masq-dual", r#""SubnetMin":"10.244.90.0","SubnetMax":"10.244.90.0","IPv6SubnetMin":"fd10:244:0:22::","IPv6SubnetMax":"fd10:244:0:22::""#),
    masq_noforward_rules_equal_those_of_go_flannel => ("masq-noforward", r#""SubnetMin":"10.244.42.0","SubnetMax":"10.244.42.0""#),
}

fn iptables_rules_equal_those_of_go_flannel((case, lease): (&str, &str)) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flanneld/tests/golden").join(case);
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).context(file.to_owned());
    let (flags, net_conf) = (read("flags")?, read("net-conf.json")?);
    let add = |_, options| flags.split_whitespace().fold(options, lab::FlanneldOptions::arg);
    let scene = Scene::with_title(case).nodes(1).options(add).without_pods();
    scene.net(&net_conf.replacen('{', &format!("{{{lease},"), 1)).run(|s| {
        let listed = s[0].sh("for program in iptables ip6tables; do for table in nat filter; do
                echo \"# $program -t $table -S\"; $program -t $table -S
            done; done")?;
        ensure!(listed == read("iptables.txt")?, "{listed}");
        s.require_no_errors()
    })
}

scenarios! { rules_fall_back_without_random_ports;
    random_ports_are_tried_first_by_iptables => (IptablesNft, "iptables-nft-restore"),
    random_ports_are_tried_first_by_nftables => (Nftables, "nft"),
}

/// If iptables or nft does not support random ports, the daemon writes rules without them, and a restart keeps these.
fn rules_fall_back_without_random_ports((applier, program): (Applier, &str)) -> Result<()> {
    masquerading_node_scene("random ports", applier).run(|s| {
        let old = format!(
            "#!/bin/sh\ncase \"{program} $*\" in *list*) exec /usr/sbin/nft \"$@\";; esac\n\
             input=$(/bin/cat)\ncase \"$input\" in *random*) echo 'unknown option' >&2; exit 2;; esac\n\
             printf '%s\\n' \"$input\" | /usr/sbin/{program} \"$@\"\n"
        );
        let programs = Programs::create_empty(s.lab, "old")?.with_nft()?.with_full_iptables_names(Xtables::Nft)?;
        let path = programs.with_script(program, &old)?.path();
        s[0].change_options(|options| options.env("PATH", &path));
        let mut first = None;
        for starts in 1..=2 {
            s.start_daemons()?;
            let (now, daemon) = (firewall_rules(&s[0])?, s[0].daemon()?);
            ensure!(now.contains("10.244.0.0/16") && (applier != Nftables || !now.contains("random")), "{now}");
            ensure!(*first.get_or_insert(now.clone()) == now, "{first:?} {now}");
            let writes = daemon.metric("flannel_rule_writes_total")?;
            ensure!((writes > 0.0) == (starts == 1), "{writes} {}", daemon.log());
            s[0].stop_daemon()?;
        }
        Ok(())
    })
}

/// The daemon keeps its iptables variant, even if the system's choice changes, and logs the variant's name.
#[test]
fn iptables_variant_is_kept_when_the_system_chooses_another() -> Result<()> {
    run_on_stopped_masquerading_node(IptablesNft, &[], |s| {
        s[0].sh("iptables-legacy -t nat -N KUBE-SERVICES; iptables-legacy -t nat -A KUBE-SERVICES -j RETURN
                 iptables-nft -N DOCKER; iptables-nft -A DOCKER -j RETURN")?;
        s.start_daemons()?;
        let found = logged_warnings_and_errors(s[0].daemon()?);
        let is_named = |line: &String| line.contains("nf_tables: DOCKER; legacy: KUBE-SERVICES");
        ensure!(found.len() == 1 && found.iter().all(is_named), "{found:?}");
        let has_moved =
            |node: &Node| Ok::<_, anyhow::Error>(node.sh("iptables-nft-save")?.contains("FLANNEL"));
        ensure!(has_flannel_rules(&s[0], IptablesLegacy)? && !has_moved(&s[0])?);
        // Removes the rules that determined the choice, and ours.
        s[0].sh("iptables-legacy -t nat -F; iptables-legacy -t nat -X")?;
        s[0].wait_output_contains("iptables-legacy-save", "FLANNEL-POSTRTG")?;
        ensure!(!has_moved(&s[0])?);
        Ok(())
    })
}

scenarios! { rules_without_comment_stay;
    rules_without_comment_stay_with_iptables => IptablesNft,
    rules_without_comment_stay_with_nftables => Nftables,
}

fn rules_without_comment_stay(applier: Applier) -> Result<()> {
    run_on_stopped_masquerading_node(applier, &[], |s| {
        s[0].sh("iptables -t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE; iptables -A FORWARD -d 10.244.0.0/16 -j ACCEPT")?;
        let before = s[0].sh("iptables-save | grep ^-A")?;
        s.start_daemons()?;
        let after = s[0].sh("iptables-save")?;
        ensure!(before.lines().all(|rule| after.contains(rule)), "{before}\n{after}");
        Ok(())
    })
}
