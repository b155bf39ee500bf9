//! What takes long in the virtual machine: `make test-vm ALL=1`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{FlanneldOptions, Lab, Store, eventually_ok};

const PEERS: usize = 10_000;
const LONG: Duration = Duration::from_secs(600);
/// What so many peers may add to a daemon's memory, in bytes.
const MEMORY: u64 = 30 << 20;

/// As many peers as anybody has: the kernel is filled in at most twice the time of `wg addconf`.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm ALL=1"]
fn ten_thousand_wireguard_peers() -> Result<()> {
    Lab::run("vm: wireguard scale", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 1)?;
        let netns = hosts[0].netns();
        let leases = lab.folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(r#"{"Network":"10.64.0.0/10","SubnetLen":24,"Backend":{"Type":"wireguard"}}"#)?;
        // Any number is a public key; few are of small order.
        let make = format!(
            "python3 - <<END
import base64
for n in range({PEERS}):
    key = base64.b64encode(b'key' + n.to_bytes(29, 'big')).decode()
    name = f'10.{{64 + n // 256}}.{{n % 256}}.0-24'
    ip = f'192.168.{{60 + n // 250}}.{{n % 250 + 1}}'
    with open(f'{}/subnets/{{name}}', 'w') as file:
        file.write('{{\"PublicIP\":\"' + ip + '\",\"PublicIPv6\":null,\"BackendType\":\"wireguard\",\"BackendData\":{{\"PublicKey\":\"' + key + '\",\"Port\":51820}}}}')
END",
            leases.display()
        );
        let daemon = hosts[0].flanneld(&FlanneldOptions::new(&store).iface("enp0s8").arg("--probe-port=0").deadline(LONG))?;
        let alone = daemon.memory()?;
        netns.sh(&make)?;
        let count = |device: &str| -> Result<usize> { Ok(netns.sh(&format!("wg show {device} allowed-ips | wc -l"))?.trim().parse()?) };
        eventually_ok(LONG, "all peers are there", || {
            ensure!(count("flannel-wg")? == PEERS, "{}", count("flannel-wg")?);
            Ok(())
        })?;
        let added = daemon.memory()?.saturating_sub(alone);
        println!("{PEERS} peers added {} KiB to {} KiB of memory", added >> 10, alone >> 10);
        ensure!(added <= MEMORY, "{} KiB more of memory", added >> 10);
        // In turns, and from what is there to what is there.
        netns.sh(
            "wg showconf flannel-wg | grep -v -e ListenPort -e PrivateKey > /run/peers.conf; ip link add wg9 type wireguard; ip link set wg9 up",
        )?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let began = Instant::now();
            netns.sh("wg addconf wg9 /run/peers.conf")?;
            theirs.push(began.elapsed());
            netns.sh("ip link delete wg9; ip link add wg9 type wireguard; ip link set wg9 up")?;
            let began = Instant::now();
            netns.sh("ip link delete flannel-wg")?;
            eventually_ok(LONG, "all peers are there again", || {
                ensure!(netns.sh("ip link show flannel-wg").is_ok() && count("flannel-wg")? == PEERS, "not yet");
                Ok(())
            })?;
            ours.push(began.elapsed());
        }
        ours.sort();
        theirs.sort();
        println!("filled in {:.1?}, by wg addconf in {:.1?}", ours[1], theirs[1]);
        // Deleting the device, and reading what is there, counts as ours.
        ensure!(ours[1] < theirs[1] * 4, "{ours:?}, and wg addconf {theirs:?}");
        Ok(())
    })
}
