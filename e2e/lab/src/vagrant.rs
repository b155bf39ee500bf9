//! Hosts with the same interfaces as hosts of Vagrant with VirtualBox. Without `--iface`, Go flannel announces 10.0.2.15 from every host.

use anyhow::Result;

use crate::host::Host;
use crate::host::nat::NatBox;
use crate::host::uplink::Uplink;
use crate::lab::Lab;
use crate::net::switch::Switch;

/// Hosts with a default route on `enp0s3`, each to a separate NAT box. Their address there is 10.0.2.15, except with [`Lab::create_vagrant_with_different_addresses`].
#[derive(Debug, Clone)]
pub struct Vagrant {
    /// Of the interfaces `enp0s8`: VirtualBox's host-only network. The hosts reach each other only through it.
    pub lan: Switch,
    /// Behind the NAT boxes.
    pub world: Switch,
    /// A host behind the NAT boxes, 198.51.100.1.
    pub internet: Host,
    /// `h1`, `h2`, … in order.
    pub hosts: Vec<Host>,
    /// One for each host, with the address 10.0.2.2 towards it and 198.51.100.101, … towards the internet.
    pub nat_boxes: Vec<NatBox>,
}

impl Lab {
    /// All hosts have 10.0.2.15 on `enp0s3`, and different addresses only on `enp0s8`, as Vagrant with VirtualBox makes them.
    pub fn create_vagrant_with_equal_addresses(&self, count: u8) -> Result<Vagrant> {
        Vagrant::build(self, count, |_| 15)
    }

    /// Like [`Lab::create_vagrant_with_equal_addresses`], but each host has a different address on `enp0s3`: 10.0.2.15, 10.0.2.16, …
    pub fn create_vagrant_with_different_addresses(&self, count: u8) -> Result<Vagrant> {
        Vagrant::build(self, count, |number| 14 + number)
    }
}

impl Vagrant {
    fn build(lab: &Lab, count: u8, last: impl Fn(u8) -> u8) -> Result<Vagrant> {
        let (lan, world) = (lab.create_switch("lan")?, lab.create_switch("world")?);
        let internet = lab
            .create_host("internet", &[Uplink::new(&world, "eth0").address("198.51.100.1/24")?])?;
        let (mut hosts, mut nat_boxes) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let wire = lab.create_switch(&format!("nat{number}"))?;
            let outside = format!("198.51.100.{}/24", u16::from(number) + 100);
            nat_boxes.push(lab.create_nat_box(
                &format!("nat{number}"),
                (&wire, "10.0.2.2/24"),
                (&world, &outside),
            )?);
            let nat = Uplink::new(&wire, "enp0s3")
                .address(&format!("10.0.2.{}/24", last(number)))?
                .gateway("10.0.2.2")?;
            hosts.push(
                lab.create_host(&format!("h{number}"), &[nat, Uplink::enp0s8(&lan, number)?])?,
            );
        }
        Ok(Vagrant { lan, world, internet, hosts, nat_boxes })
    }
}
