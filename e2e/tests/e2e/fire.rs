//! Checks that no subnet has two owners and no packet is lost or misdelivered during mass starts, lost leases, hostile values and outages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Launch, Mesh, Monitor, Pod, Probe,
    ProbeOptions, Process, Store, Switch, Uplink, binaries, throughout, until, until_ok,
};

use hostile::{Entry, Fate, value};

mod hostile;

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.90.0","Backend":{"Type":"vxlan"}}"#;

/// Hosts with a daemon and a pod each, and etcd on a host of its own.
struct Cluster {
    daemons: Vec<Flanneld>,
    etcd: Etcd,
    options: FlanneldOptions,
    pods: Vec<Pod>,
    hosts: Vec<Host>,
    store: Store,
    store_host: Host,
    lan: Switch,
}

impl Cluster {
    /// Starts a cluster in which only the first `running` hosts have a daemon.
    fn start(lab: &Lab, net_conf: &str, hosts: u8, running: usize) -> Result<Cluster> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, hosts)?;
        let store_host = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store_host], &EtcdOptions::default())?;
        let store = etcd.store()?;
        store.configure(net_conf)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--audit-interval=0");
        let mut cluster = Cluster {
            daemons: Vec::new(),
            etcd,
            options,
            pods: Vec::new(),
            hosts,
            store,
            store_host,
            lan,
        };
        for number in 0..running {
            cluster.join(number)?;
        }
        Ok(cluster)
    }

    fn join(&mut self, number: usize) -> Result<()> {
        let daemon = self.hosts[number].flanneld(&self.options)?;
        self.pods
            .push(self.hosts[number].pod("p1", &daemon.subnet_env()?)?);
        self.daemons.push(daemon);
        Ok(())
    }

    /// Starts probes on each path, once all paths carry packets.
    fn mesh(&self) -> Result<Mesh> {
        let options = ProbeOptions::default().interval(Duration::from_millis(10));
        Mesh::start(&self.pods, &options)?.wait_flowing()?;
        let mesh = Mesh::start(&self.pods, &options)?;
        mesh.wait_flowing()?;
        Ok(mesh)
    }

    /// Writes a key below `subnets/`. etcdctl reads the value from stdin, because large values do not fit into an argument.
    fn put(&self, key: &str, value: &str) -> Result<()> {
        let etcdctl = binaries::etcd("etcdctl")?;
        let key = self.store.key(&format!("subnets/{key}"));
        if value.is_empty() {
            return self.etcd.client()?.put(&key, value);
        }
        self.store_host
            .netns()
            .feed(&etcdctl.to_string_lossy(), &["put", "--", &key], value)
            .map(drop)
    }

    fn delete(&self, key: &str) -> Result<()> {
        let there = self
            .etcd
            .client()?
            .del(&self.store.key(&format!("subnets/{key}")))?;
        ensure!(there, "{key} was not there");
        Ok(())
    }

    /// Waits until every running daemon has a route to a subnet.
    fn wait_route(&self, subnet: &str) -> Result<()> {
        for host in &self.hosts[..self.daemons.len()] {
            until(&format!("{} has a route to {subnet}", host.name()), || {
                has_route(host, subnet)
            })?;
        }
        Ok(())
    }

    /// Returns a node's subnet in the format of a lease key.
    fn key_of(&self, number: usize) -> Result<String> {
        key_of(&self.daemons[number])
    }

    /// Checks that all daemons run, have always been ready, and logged no error.
    fn well(&mut self) -> Result<()> {
        for daemon in &mut self.daemons {
            ensure!(
                daemon.is_running(),
                "a daemon ended:\n{}",
                daemon.log_tail(20)
            );
            ensure!(daemon.is_ready(), "not ready: {:?}", daemon.get("/readyz"));
            // On a busy machine, the daemon may write the first rules later than its start waits for them.
            let log = daemon.log();
            let unready = log
                .lines()
                .find(|line| line.contains("not ready reason=") && !line.ends_with("reason=rules"));
            ensure!(
                unready.is_none(),
                "a daemon was not ready for a while:\n{}",
                daemon.log_tail(20)
            );
            ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
            ensure!(
                !daemon.log().contains(['\0', '\x1b']),
                "what others wrote is in the log as it is"
            );
        }
        Ok(())
    }
}

fn has_route(host: &Host, subnet: &str) -> bool {
    host.netns().routes().is_ok_and(|routes| {
        routes
            .iter()
            .any(|route| route.dst == subnet && route.protocol == "241")
    })
}

fn key_of(daemon: &Flanneld) -> Result<String> {
    let subnet = daemon
        .subnet_env()?
        .subnet
        .context("no subnet in subnet.env")?
        .trunc();
    Ok(format!("{}-{}", subnet.network(), subnet.prefix_len()))
}

/// Returns the key and the value of the lease of a peer that has no daemon.
fn fake(number: u8) -> (String, String) {
    (
        format!("10.5.{}.0-24", 100 + number),
        value(
            &format!("192.168.56.{}", 200 + number),
            &format!("02:00:00:00:aa:{number:02x}"),
        ),
    )
}

fn fake_subnet(number: u8) -> String {
    format!("10.5.{}.0/24", 100 + number)
}

/// Checks that the host's kernel reported no change of flannel's objects for `subnets` while the monitor ran.
fn require_silence_about(subnets: &[String], host: &Host, monitor: &mut Monitor) -> Result<()> {
    let reports = monitor.reports()?;
    let begins: Vec<&str> = subnets
        .iter()
        .map(|subnet| {
            subnet
                .split_once(".0/")
                .map_or(subnet.as_str(), |(begin, _)| begin)
        })
        .collect();
    let ours = reports
        .lines()
        .filter(|line| line.contains("flannel") || line.contains("proto 241"));
    let reports: Vec<&str> = ours
        .filter(|line| {
            begins
                .iter()
                .any(|begin| line.contains(&format!("{begin}.")))
        })
        .collect();
    ensure!(
        reports.is_empty(),
        "{}: changes about good peers: {reports:#?}",
        host.name()
    );
    Ok(())
}

fn watch(host: &Host) -> Result<Monitor> {
    Monitor::ip(host, &["neigh"])
}

/// A process that runs `etcdctl watch` and records every revision of the leases.
struct History {
    process: Process,
    store_host: Host,
}

impl History {
    fn start(cluster: &Cluster) -> Result<History> {
        let launch = Launch::new(binaries::etcd("etcdctl")?).args([
            "watch",
            "--prefix",
            "--rev=1",
            "/coreos.com/network/",
        ]);
        Ok(History {
            process: cluster.store_host.spawn("history", &launch)?,
            store_host: cluster.store_host.clone(),
        })
    }

    /// Checks that no subnet had two owners, and that no owner had two subnets, at any revision. Returns the number of lease writes.
    fn require_single_owners(&self) -> Result<usize> {
        let etcdctl = binaries::etcd("etcdctl")?;
        self.store_host.netns().exec(
            &etcdctl.to_string_lossy(),
            &["put", "/coreos.com/network/mark", "the end"],
        )?;
        until("etcd reports all revisions", || {
            self.process.log().contains("the end")
        })?;
        let log = self.process.log();
        let mut lines = log.lines();
        let (mut owners, mut writes) = (BTreeMap::<String, String>::new(), 0);
        while let Some(kind) = lines.next() {
            let (key, text) = (
                lines.next().unwrap_or_default(),
                lines.next().unwrap_or_default(),
            );
            let Some(key) = key.strip_prefix("/coreos.com/network/subnets/") else {
                continue;
            };
            match kind {
                "PUT" => {
                    let written: serde_json::Value =
                        serde_json::from_str(text).with_context(|| format!("{key}: {text}"))?;
                    let owner = written["PublicIP"].as_str().unwrap_or_default().to_owned();
                    if let Some((other, _)) = owners
                        .iter()
                        .find(|(other, known)| (*other == key) != (**known == owner))
                    {
                        bail!(
                            "{key} was written by {owner} while {other} was held by {}; all of it:\n{log}",
                            owners[other]
                        );
                    }
                    owners.insert(key.to_owned(), owner);
                    writes += 1;
                }
                "DELETE" => drop(owners.remove(key)),
                kind => bail!("etcdctl says {kind:?}"),
            }
        }
        Ok(writes)
    }
}

#[test]
fn sixty_four_daemons_at_once_share_sixty_four_subnets() {
    Lab::run("stampede", |lab| {
        const NODES: u8 = 64;
        let pool = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.64.0","Backend":{"Type":"alloc"}}"#;
        let mut cluster = Cluster::start(lab, pool, 0, 0)?;
        // The kernel notices a new link up to a second late, so eight are made at a time.
        let number = std::sync::atomic::AtomicU8::new(1);
        let build = || -> Result<Vec<Host>> {
            let mut built = Vec::new();
            loop {
                let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if number > NODES {
                    return Ok(built);
                }
                built.push(lab.host(&format!("h{number}"), &[Uplink::enp0s8(&cluster.lan, number)?])?);
            }
        };
        let hosts: Result<Vec<Vec<Host>>> = std::thread::scope(|scope| {
            let builders: Vec<_> = (0..8).map(|_| scope.spawn(build)).collect();
            builders.into_iter().map(|builder| builder.join().unwrap()).collect()
        });
        cluster.hosts = hosts?.concat();
        let history = History::start(&cluster)?;
        let start = Instant::now();
        cluster.daemons = cluster.hosts.iter().map(|host| host.start_flanneld(&cluster.options)).collect::<Result<_>>()?;
        for daemon in &mut cluster.daemons {
            daemon.wait_ready()?;
        }
        println!("{NODES} daemons ready after {:.2?}", start.elapsed());
        let subnets: BTreeSet<String> = cluster.daemons.iter().map(key_of).collect::<Result<_>>()?;
        ensure!(subnets.len() == usize::from(NODES), "{} distinct subnets: {subnets:?}", subnets.len());
        let stored: BTreeSet<String> = cluster.store.subnets()?.into_iter().map(|(key, _)| key).collect();
        ensure!(stored == subnets, "the store has {stored:?}, the nodes use {subnets:?}");
        let writes = history.require_single_owners()?;
        let calls = |kind: &str| {
            let counts =
                cluster.daemons.iter().map(|daemon| daemon.metric(&format!("flannel_store_requests_total{{kind=\"{kind}\"}}")).unwrap_or(0.0));
            counts.sum::<f64>()
        };
        println!("{writes} writes of leases, {} transactions, {} ranges", calls("txn"), calls("range"));
        cluster.well()
    })
    .unwrap();
}

#[test]
fn a_subnet_reassigned_while_its_owner_was_stopped_has_one_owner() {
    Lab::run("zombie", |lab| {
        let pool =
            |max: u8| format!(r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.{max}.0","Backend":{{"Type":"vxlan"}}}}"#);
        let mut cluster = Cluster::start(lab, &pool(12), 4, 3)?;
        let history = History::start(&cluster)?;
        let (key, client) = (cluster.key_of(0)?, cluster.etcd.client()?);
        let lease = client.get(&cluster.store.key(&format!("subnets/{key}")))?.context("the lease of h1")?.lease;
        let others = cluster.mesh()?;

        cluster.daemons[0].stop()?;
        client.revoke(lease)?;
        others.wait_flowing()?;
        others.require_clean().context("the lease was gone, but the subnet not reassigned")?;

        // The only free subnet is that of h1.
        cluster.join(3)?;
        ensure!(cluster.key_of(3)? == key, "h4 got another subnet");
        ensure!(cluster.pods[3].address()? == cluster.pods[0].address()?, "the pods of h1 and h4 should share an address");
        let astray = cluster.pods[0].netns().run(|| std::net::UdpSocket::bind("0.0.0.0:7100"))??;
        astray.set_nonblocking(true)?;
        let options = ProbeOptions::default().port(7100);
        // Until h2 knows the new owner, it sends packets to the old one.
        let first = Probe::start(&cluster.pods[1], &cluster.pods[3], &options)?;
        first.wait_flowing()?;
        drop(first);
        while astray.recv_from(&mut [0; 2048]).is_ok() {}
        let probe = Probe::start(&cluster.pods[1], &cluster.pods[3], &options)?;
        probe.wait_flowing()?;

        cluster.daemons[0].cont()?;
        let status = cluster.daemons[0].wait()?;
        ensure!(status.code() == Some(5), "{status}\n{}", cluster.daemons[0].log_tail(20));
        let errors = cluster.daemons[0].errors();
        ensure!(errors.len() == 1 && errors[0].contains(&key), "the error should name the lease: {errors:?}");

        // A supervisor restarts the daemon, which then waits for a free subnet.
        cluster.daemons[0] = cluster.hosts[0].start_flanneld(&cluster.options)?;
        until("h1 waits for a subnet", || {
            cluster.daemons[0].get("/readyz").is_ok_and(|(code, text)| code == 503 && text.contains("lease:"))
        })?;
        cluster.store.configure(&pool(13))?;
        cluster.daemons[0].kill()?;
        cluster.daemons[0] = cluster.hosts[0].flanneld(&cluster.options)?;
        ensure!(cluster.key_of(0)? != key, "h1 has the subnet of h4");
        probe.wait_flowing()?;
        probe.finish()?.require_clean()?;
        ensure!(astray.recv_from(&mut [0; 2048]).is_err(), "a packet for h4's pod was delivered to h1's");
        history.require_single_owners()?;
        for daemon in &cluster.daemons[1..] {
            ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        }
        Ok(())
    })
    .unwrap();
}

/// Returns the sum of a metric over its labels.
fn sum(daemon: &Flanneld, name: &str) -> Result<u64> {
    let (_, text) = daemon.get("/metrics")?;
    let lines = text
        .lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    Ok(lines.sum())
}

/// Waits until the node's metrics count all unreadable and all refused entries. The count of refused entries may include entries that look like peers.
fn wait_counted(daemon: &Flanneld, entries: &[Entry]) -> Result<()> {
    let count = |fate: Fate| entries.iter().filter(|(.., found)| *found == fate).count() as u64;
    until_ok("what is hostile is counted", || {
        let (unreadable, refused) = (
            sum(daemon, "flannel_leases_unreadable")?,
            sum(daemon, "flannel_leases_refused")?,
        );
        ensure!(
            unreadable == count(Fate::Unreadable),
            "{unreadable} unreadable instead of {}",
            count(Fate::Unreadable)
        );
        let (least, most) = (
            count(Fate::Refused),
            count(Fate::Refused) + count(Fate::Peer),
        );
        ensure!(
            (least..=most).contains(&refused),
            "{refused} refused instead of {least} to {most}: {}",
            daemon.get("/metrics")?.1
        );
        Ok(())
    })
}

/// Returns the third byte of each node's subnet, and the MAC of each node's vxlan device.
fn good(hosts: &[Host], daemons: &[Flanneld]) -> Result<Vec<(u8, String)>> {
    let of = |(host, daemon): (&Host, &Flanneld)| {
        let third = daemon
            .subnet_env()?
            .subnet
            .context("no subnet")?
            .addr()
            .octets()[2];
        Ok((
            third,
            host.netns()
                .link("flannel.1")?
                .context("no flannel.1")?
                .address,
        ))
    };
    hosts.iter().zip(daemons).map(of).collect()
}

#[test]
fn two_hundred_hostile_entries_in_etcd_change_nothing() {
    Lab::run("hostile", |lab| {
        let mut cluster = Cluster::start(lab, VXLAN, 3, 3)?;
        // Peers without a daemon do not restore a lease that is overwritten.
        for number in 1..=3 {
            let (key, value) = fake(number);
            cluster.put(&key, &value)?;
            cluster.wait_route(&fake_subnet(number))?;
        }
        let mesh = cluster.mesh()?;
        let good = good(&cluster.hosts, &cluster.daemons)?;
        let subnets: Vec<String> = good
            .iter()
            .map(|(third, _)| format!("10.5.{third}.0/24"))
            .chain((1..=3).map(fake_subnet))
            .collect();
        let mut monitors: Vec<Monitor> = cluster.hosts.iter().map(watch).collect::<Result<_>>()?;

        let mut entries = hostile::entries(&good);
        ensure!(entries.len() >= 200, "only {} entries", entries.len());
        for (key, value, _) in &entries {
            cluster.put(key, value)?;
        }
        // The last good value of a key stays in force when the fake peers lose their values.
        for number in 1..=3 {
            let (key, value) = fake(number);
            cluster.put(&key, &value[..value.len() - 1])?;
            entries.push((key, String::new(), Fate::Unreadable));
        }
        // The daemon reads entries in order, so the last one marks the end.
        let (key, last) = fake(4);
        cluster.put(&key, &last)?;
        cluster.wait_route(&fake_subnet(4))?;
        for daemon in &cluster.daemons {
            wait_counted(daemon, &entries)?;
        }
        // A node writes its own value again after it was overwritten.
        let own = cluster.key_of(2)?;
        cluster.put(&own, "{broken")?;
        until_ok("h3 writes its value again", || {
            let found = cluster
                .etcd
                .client()?
                .get(&cluster.store.key(&format!("subnets/{own}")))?
                .context("no key")?;
            ensure!(
                found.value.contains("\"PublicIP\":\"192.168.56.103\""),
                "{}",
                found.value
            );
            Ok(())
        })?;
        for daemon in &cluster.daemons {
            wait_counted(daemon, &entries)?;
        }
        for (host, monitor) in cluster.hosts.iter().zip(&mut monitors) {
            require_silence_about(&subnets, host, monitor)?;
        }
        mesh.wait_flowing()?;
        mesh.require_clean()?;
        cluster.well()
    })
    .unwrap();
}

#[test]
fn hostile_files_in_a_directory_change_nothing() {
    Lab::run("hostile-dir", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let folder: PathBuf = lab.folder("leases")?;
        let store = Store::dir(&folder);
        store.configure(VXLAN)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--audit-interval=0");
        let daemons: Vec<Flanneld> = hosts
            .iter()
            .map(|host| host.flanneld(&options))
            .collect::<Result<_>>()?;
        let pods: Vec<Pod> = hosts
            .iter()
            .zip(&daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect::<Result<_>>()?;
        let probes = ProbeOptions::default().interval(Duration::from_millis(10));
        Mesh::start(&pods, &probes)?.wait_flowing()?;
        let mesh = Mesh::start(&pods, &probes)?;
        let good = good(&hosts, &daemons)?;
        let mut monitor = watch(&hosts[0])?;
        // A file name cannot contain a slash, and a name that begins with a dot is not a lease.
        let entries: Vec<_> = hostile::entries(&good)
            .into_iter()
            .filter(|(key, ..)| !key.contains('/'))
            .step_by(4)
            .collect();
        for (key, value, _) in &entries {
            std::fs::write(folder.join("subnets").join(key), value)?;
        }
        // Finds a free subnet, because the nodes took theirs at random.
        let hidden = (70..80)
            .find(|third| good.iter().all(|(good, _)| good != third))
            .context("no free subnet")?;
        std::fs::write(
            folder.join(format!("subnets/.10.5.{hidden}.0-24")),
            value("192.168.56.245", "02:00:00:00:ff:01"),
        )?;
        std::fs::write(folder.join("subnets").join(fake(1).0), fake(1).1)?;
        for (host, daemon) in hosts.iter().zip(&daemons) {
            until("the last file is read", || has_route(host, &fake_subnet(1)))?;
            wait_counted(daemon, &entries)?;
            ensure!(
                !has_route(host, &format!("10.5.{hidden}.0/24")),
                "a hidden file is no lease"
            );
        }
        let subnets: Vec<String> = good
            .iter()
            .map(|(third, _)| format!("10.5.{third}.0/24"))
            .collect();
        require_silence_about(&subnets, &hosts[0], &mut monitor)?;
        mesh.wait_flowing()?;
        mesh.require_clean()?;
        for daemon in &daemons {
            ensure!(
                daemon.is_ready() && daemon.errors().is_empty(),
                "{:?}",
                daemon.errors()
            );
        }
        Ok(())
    })
    .unwrap();
}

/// Returns the duration of etcd's outage: 5 s, or the seconds in FLANNEL_TEST_OUTAGE. After one minute of the outage, nodes are not ready.
fn outage() -> Duration {
    Duration::from_secs(lab::env_number("FLANNEL_TEST_OUTAGE", 5))
}

#[test]
fn etcd_cut_off_compacted_killed_and_restored_loses_no_packet() {
    Lab::run("outage", |lab| {
        let mut cluster = Cluster::start(lab, VXLAN, 4, 3)?;
        for number in 1..=3 {
            cluster.put(&fake(number).0, &fake(number).1)?;
            cluster.wait_route(&fake_subnet(number))?;
        }
        let mesh = cluster.mesh()?;
        let subnets = (0..3)
            .map(|number| Ok(cluster.key_of(number)?.replace('-', "/")))
            .chain((1..=3).map(|number| Ok(fake_subnet(number))))
            .collect::<Result<Vec<String>>>()?;
        let mut monitor = watch(&cluster.hosts[0])?;

        compact_behind_a_cut(&cluster)?;
        let snapshot = lab.folder("")?.join("snapshot");
        cluster.etcd.client()?.snapshot(&snapshot)?;
        // The snapshot does not contain this lease.
        cluster.put(&fake(5).0, &fake(5).1)?;
        cluster.wait_route(&fake_subnet(5))?;
        cluster.etcd.kill(0)?;
        daemons_live_without_etcd(&mut cluster)?;
        cluster.etcd.restore(&snapshot)?;
        wait_leases_and_readiness(&cluster)?;

        // A node that joins now reaches all others.
        cluster.join(3)?;
        let newcomer = cluster.mesh()?;
        newcomer.require_clean()?;
        require_silence_about(&subnets, &cluster.hosts[0], &mut monitor)?;
        mesh.require_clean()?;
        for daemon in &mut cluster.daemons {
            ensure!(
                daemon.is_running() && daemon.is_ready() && daemon.errors().is_empty(),
                "{:?}\n{}",
                daemon.errors(),
                daemon.log_tail(20)
            );
        }
        Ok(())
    })
    .unwrap();
}

/// Writes a key and compacts etcd's history while etcd is disconnected. A daemon then receives the key only when the daemon lists all keys again.
fn compact_behind_a_cut(cluster: &Cluster) -> Result<()> {
    let client = cluster.etcd.client()?;
    cluster.store_host.cut("enp0s8")?;
    cluster.put(&fake(4).0, &fake(4).1)?;
    client.put("/elsewhere", "x")?;
    client.compact()?;
    cluster.store_host.reconnect("enp0s8")?;
    cluster.wait_route(&fake_subnet(4))
}

/// Checks that daemons stay alive for the whole outage. After one minute without etcd, the daemons are not ready.
fn daemons_live_without_etcd(cluster: &mut Cluster) -> Result<()> {
    throughout(outage(), "daemons live without etcd", || {
        for daemon in &mut cluster.daemons {
            ensure!(
                daemon.is_running(),
                "a daemon ended:\n{}",
                daemon.log_tail(20)
            );
            ensure!(
                daemon.get("/healthz")?.0 == 200,
                "unhealthy without etcd: {:?}",
                daemon.get("/healthz")
            );
        }
        Ok(())
    })?;
    let known = outage() < Duration::from_secs(60);
    if known || outage() > Duration::from_secs(75) {
        for daemon in &cluster.daemons {
            ensure!(
                daemon.is_ready() == known,
                "after {:?} without etcd: {:?}",
                outage(),
                daemon.get("/readyz")
            );
        }
    }
    Ok(())
}

/// Waits until the restored store contains the nodes' leases, and the daemons are ready.
fn wait_leases_and_readiness(cluster: &Cluster) -> Result<()> {
    let keys: Vec<String> = (0..3)
        .map(|number| cluster.key_of(number))
        .collect::<Result<_>>()?;
    until("the nodes' leases are in the restored store", || {
        cluster.store.subnets().is_ok_and(|stored| {
            keys.iter()
                .all(|key| stored.iter().any(|(found, _)| found == key))
        })
    })?;
    for daemon in &cluster.daemons {
        until("ready again", || daemon.is_ready())?;
    }
    Ok(())
}

#[test]
fn removed_peer_is_dropped_after_a_delay_and_mass_removal_is_held_down() {
    Lab::run("removal", |lab| {
        let mut cluster = Cluster::start(lab, VXLAN, 2, 2)?;
        for number in 1..=8 {
            cluster.put(&fake(number).0, &fake(number).1)?;
        }
        cluster.wait_route(&fake_subnet(8))?;
        let mesh = cluster.mesh()?;

        let start = Instant::now();
        cluster.delete(&fake(8).0)?;
        let gone = "the route of a removed peer goes";
        until(gone, || !has_route(&cluster.hosts[0], &fake_subnet(8)))?;
        let waited = start.elapsed();
        println!("removed after {waited:.2?}");
        ensure!(
            waited > Duration::from_millis(4_500),
            "the removal did not wait: {waited:?}"
        );

        let subnets: Vec<String> = (0..2)
            .map(|number| Ok(cluster.key_of(number)?.replace('-', "/")))
            .collect::<Result<_>>()?;
        let subnets: Vec<String> = subnets
            .into_iter()
            .chain((1..=7).map(fake_subnet))
            .collect();
        let mut monitors: Vec<Monitor> = cluster.hosts.iter().map(watch).collect::<Result<_>>()?;
        cluster
            .etcd
            .client()?
            .etcdctl(&["del", "--prefix", &cluster.store.key("subnets/")])?;
        // Longer than the delay of a single removal.
        throughout(Duration::from_secs(8), "routes to peers stay", || {
            for subnet in (1..=7).map(fake_subnet) {
                ensure!(
                    cluster.hosts.iter().all(|host| has_route(host, &subnet)),
                    "{subnet} has lost its route"
                );
            }
            Ok(())
        })?;
        let stored: Vec<String> = cluster
            .store
            .subnets()?
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        ensure!(
            stored.len() == 2
                && stored.contains(&cluster.key_of(0)?)
                && stored.contains(&cluster.key_of(1)?),
            "only living nodes put theirs back: {stored:?}"
        );
        for number in 1..=7 {
            cluster.put(&fake(number).0, &fake(number).1)?;
        }
        // The daemon reads entries in order, so the last one marks the end.
        cluster.put(&fake(9).0, &fake(9).1)?;
        cluster.wait_route(&fake_subnet(9))?;
        for (host, monitor) in cluster.hosts.iter().zip(&mut monitors) {
            require_silence_about(&subnets, host, monitor)?;
        }
        mesh.wait_flowing()?;
        mesh.require_clean()?;
        cluster.well()
    })
    .unwrap();
}
