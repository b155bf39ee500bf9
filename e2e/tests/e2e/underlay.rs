//! Checks that a daemon's readiness follows events of the underlay interface: removal and return, and changes of state, carrier and address.

use anyhow::{Result, ensure};
use lab::{Bed, Flanneld, Host, Lab, Uplink, code_or_text, until};

use crate::healing::scenarios;

/// One host and its daemon.
struct Node {
    bed: Bed,
}

impl Node {
    fn daemon(&self) -> &Flanneld {
        &self.bed.daemons[0]
    }

    fn host(&self) -> &Host {
        &self.bed.hosts[0]
    }

    /// Checks that /readyz returns 503 from `lose` until `restore`, and that the log reports both changes.
    fn loses(
        &self,
        what: &str,
        lose: impl FnOnce(&Host) -> Result<()>,
        text: &str,
        restore: impl FnOnce(&Host) -> Result<()>,
    ) -> Result<()> {
        let reports = |daemon: &Flanneld| {
            daemon
                .log()
                .lines()
                .filter(|line| {
                    line.contains("the underlay carries no packets") && line.contains(text)
                })
                .count()
        };
        let before = reports(self.daemon());
        lose(self.host())?;
        let readyz = || self.daemon().get("/readyz").unwrap_or_default();
        let unready = || matches!(readyz(), (503, body) if body.lines().any(|line| line.starts_with("underlay: ") && line.contains(text)));
        until(
            &format!("{what}: not ready because it {text}, but {:?}", readyz()),
            unready,
        )?;
        ensure!(
            reports(self.daemon()) == before + 1,
            "{what}: reported {} times:\n{}",
            reports(self.daemon()) - before,
            self.daemon().log_tail(20)
        );
        restore(self.host())?;
        until(&format!("{what}: ready again"), || self.daemon().is_ready())?;
        Ok(())
    }

    fn ip(&self, batch: &str) -> Result<()> {
        self.host().netns().ip(batch).map(drop)
    }
}

fn ip(batch: &str) -> impl FnOnce(&Host) -> Result<()> {
    move |host| host.netns().ip(batch).map(drop)
}

scenarios! { follows_the_underlay;
    readiness_follows_the_underlay_of_vxlan => ("underlay-vxlan", r#"{"Type":"vxlan"}"#),
    readiness_follows_the_underlay_of_userspace_vxlan => ("underlay-userspace", r#"{"Type":"vxlan","Mode":"userspace"}"#),
    readiness_follows_the_underlay_of_udp => ("underlay-udp", r#"{"Type":"udp"}"#),
    readiness_follows_the_underlay_of_host_gw => ("underlay-host-gw", r#"{"Type":"host-gw"}"#),
    readiness_follows_the_underlay_of_alloc => ("underlay-alloc", r#"{"Type":"alloc"}"#),
}

fn follows_the_underlay((title, backend): (&str, &str)) -> Result<()> {
    Lab::run(title, |lab| {
        let bed = Bed::start(
            lab,
            1,
            &format!(r#"{{"Network":"10.5.0.0/16","Backend":{backend}}}"#),
            |_, options| options,
        )?;
        let uplink = Uplink::enp0s8(&bed.lan, 1)?;
        let mut node = Node { bed };
        node.loses(
            "set down",
            ip("link set enp0s8 down"),
            code_or_text("underlay-down", "enp0s8 is down"),
            ip("link set enp0s8 up"),
        )?;
        node.loses(
            "unplugged",
            |host| host.unplug("enp0s8"),
            code_or_text("underlay-no-carrier", "has no carrier"),
            |host| host.replug("enp0s8"),
        )?;
        let back = "address add 192.168.56.101/24 dev enp0s8";
        node.loses(
            "address removed",
            ip("address del 192.168.56.101/24 dev enp0s8"),
            code_or_text(
                "underlay-address-lost",
                "has lost its address 192.168.56.101",
            ),
            ip(back),
        )?;

        // The node stays ready if the interface keeps an address, or is only renamed.
        let alarms = node.daemon().log().matches("not ready reason=").count();
        node.ip(
            "address del 192.168.56.101/24 dev enp0s8\naddress add 192.168.56.111/24 dev enp0s8",
        )?;
        until("the new address is followed", || {
            node.daemon().log().contains("192.168.56.111, MTU 1500)")
        })?;
        node.ip("link set enp0s8 down\nlink set enp0s8 name wan0\nlink set wan0 up")?;
        until("the new name is followed", || {
            node.daemon().log().contains("to=\"wan0 (index ")
        })?;
        ensure!(
            node.daemon().is_ready(),
            "{:?}",
            node.daemon().get("/readyz")
        );
        node.loses(
            "set down under its new name",
            ip("link set wan0 down"),
            code_or_text("underlay-down", "wan0 is down"),
            ip("link set wan0 up"),
        )?;
        ensure!(
            node.daemon().log().matches("not ready reason=").count() <= alarms + 1,
            "{}",
            node.daemon().log_tail(30)
        );
        node.ip("link set wan0 down\nlink set wan0 name enp0s8\nlink set enp0s8 up")?;
        until("the old name is followed", || {
            node.daemon()
                .log()
                .contains("192.168.56.111, MTU 1500)\" to=\"enp0s8 (index ")
        })?;

        node.loses(
            "deleted",
            ip("link del enp0s8"),
            code_or_text("underlay-gone", "enp0s8 is gone"),
            |host| host.attach(&uplink),
        )?;
        ensure!(
            node.bed.daemons[0].is_running() && node.daemon().errors().is_empty(),
            "{}",
            node.daemon().log_tail(30)
        );
        Ok(())
    })
}
