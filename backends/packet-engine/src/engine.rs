//! Packet engine: a TUN device on one side, UDP sockets on the other, and the threads that move packets
//! between them.
//!
//! The control plane sets tables and reads counters. The threads never wait for it, and it waits for them
//! only to stop them.

mod backlog;
mod budget;
pub mod config;
mod control;
mod errors;
mod log_limit;
mod priority;
mod read_backoff;
mod refusals;
mod rx;
mod send_error;
mod tx;
mod wake;

use crate::counters::Counters;
use crate::encryption::Encryption;
use crate::features::{self, Features};
use crate::packet::framing::{Framing, Rival};
use crate::socket::{Port, Socket};
use crate::table::Table;
use crate::tun::{Device, Tun};
use arc_swap::ArcSwap;
use config::EngineConfig;
use control::ControlSender;
use priority::{Means, Priority, Scheduling};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use types::problem::PortPurpose;
use types::{Addresses, Detail, Problem};
use wake::Wake;

/// Number of sending sockets. Their different source ports let the underlay spread flows.
const SPREAD: usize = 16;

/// Files that the previous process handed over.
#[derive(Default)]
pub struct Inheritance {
    /// The queues of the TUN device.
    pub queues: Vec<OwnedFd>,
    /// Receiving sockets, in any order: one per queue for each address.
    pub sockets: Vec<OwnedFd>,
}

/// A packet engine, running or not.
pub struct Engine {
    config: EngineConfig,
    table: Arc<ArcSwap<Table>>,
    encryption: Option<Arc<dyn Encryption>>,
    counters: Arc<Counters>,
    sockets: Option<Sockets>,
    queues: Vec<Arc<Tun>>,
    threads: Vec<JoinHandle<()>>,
    wake: Option<Arc<Wake>>,
    inherited: Inheritance,
}

#[derive(Clone)]
struct Sockets {
    listen: Addresses,
    port: u16,
    /// One per queue for each address.
    receive: Vec<Arc<Socket>>,
    /// Empty if the receiving sockets also send.
    spread: Vec<Arc<Socket>>,
}

impl Engine {
    /// An engine without encryption. Its device and sockets are not open yet.
    #[must_use]
    pub fn new(config: EngineConfig, table: Table, inherited: Inheritance) -> Self {
        Self {
            encryption: None,
            config,
            table: Arc::new(ArcSwap::from_pointee(table)),
            counters: Arc::default(),
            sockets: None,
            queues: Vec::new(),
            threads: Vec::new(),
            wake: None,
            inherited,
        }
    }

    /// Applies from the next start of the threads on. The encryption stays the same when the engine opens,
    /// binds or stops.
    pub fn encrypt_with(&mut self, encryption: Arc<dyn Encryption>) {
        self.encryption = Some(encryption);
    }

    /// Since the engine was created; opening and closing the device does not reset them.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Applies from the next bind of the sockets on.
    pub fn set_port(&mut self, port: u16) {
        self.config.port = port;
    }

    pub fn replace_table(&self, table: Table) {
        self.table.store(Arc::new(table));
    }

    /// The interface index of the open TUN device.
    #[must_use]
    pub fn device_index(&self) -> Option<u32> {
        self.queues.first().and_then(|queue| queue.index_unless_renamed())
    }

    /// What the next process can adopt: the TUN queues and the receiving sockets.
    #[must_use]
    pub fn files_to_hand_over(&self) -> (Vec<Arc<Tun>>, Vec<Arc<Socket>>) {
        (
            self.queues.clone(),
            self.sockets.as_ref().map(|sockets| sockets.receive.clone()).unwrap_or_default(),
        )
    }

    /// Adopts the files of the previous process; true if a TUN device was among them. Unusable files are
    /// closed; [`Engine::open_and_start`] opens new ones.
    pub fn adopt_inherited_device(&mut self, listen: Addresses) -> bool {
        let Inheritance { queues, mut sockets } = std::mem::take(&mut self.inherited);
        let (features, port) = (self.config.features, self.config.port);
        let tun = |fd| Tun::inherit(fd, &self.config.device, &features).map(Arc::new);
        let mut problem = None;
        let addresses: Vec<_> = listen
            .ips()
            .flat_map(|address| std::iter::repeat_n(address, features.queues))
            .collect();
        let all = sockets.len() == addresses.len();
        // systemd returns files in reverse order: the file that was stored last comes first.
        sockets.sort_by_cached_key(|fd| {
            let bound = Socket::bound(fd).map(|bound| bound.ip());
            addresses.iter().position(|address| Some(*address) == bound).unwrap_or(usize::MAX)
        });
        let sockets: Vec<_> = (sockets.into_iter().zip(&addresses))
            .filter_map(|(fd, address)| {
                Socket::inherit_if_bound_to(fd, *address, port, &features)
                    .map(Arc::new)
                    .map_err(|why| problem = Some(why))
                    .ok()
            })
            .collect();
        let queues: Vec<_> = queues
            .into_iter()
            .filter_map(|fd| tun(fd).map_err(|why| problem = Some(why)).ok())
            .collect();
        if let Some(problem) = problem {
            tracing::warn!(
                code = &*problem.code,
                device = %self.config.device,
                error = %problem,
                "cannot adopt a file of the previous process, opening a new file"
            );
        }
        if queues.len() == features.queues {
            self.queues = queues;
        }
        if all && sockets.len() == addresses.len() {
            match self.bind_send_sockets(listen) {
                Ok(spread) => {
                    self.sockets = Some(Sockets { listen, port, receive: sockets, spread });
                }
                Err(why) => tracing::warn!(
                    code = &*why.code,
                    device = %self.config.device,
                    error = %why,
                    "cannot adopt the sockets of the previous process"
                ),
            }
        }
        !self.queues.is_empty()
    }

    /// Opens the device and the sockets, unless they are open, and starts the threads. The caller must first
    /// delete a device of this name that the engine has not opened.
    pub fn open_and_start(&mut self, listen: Addresses) -> Result<(), Problem> {
        self.stop_threads();
        self.bind_sockets(listen)?;
        if self.device_index().is_none() {
            self.queues.clear();
            let queues = match Tun::open_queues(&self.config.device, &self.config.features) {
                Ok(queues) => queues,
                Err(why) if self.config.features.vnet => {
                    // Older kernels and containers may lack offloads. The engine works without them.
                    let Features { real_time, gso, .. } = self.config.features;
                    let features = Features { real_time, gso, ..Features::mmsg() };
                    let queues = Tun::open_queues(&self.config.device, &features)
                        .map_err(|_| why.clone())?;
                    tracing::warn!(
                        code = &*why.code,
                        device = %self.config.device,
                        error = %why,
                        "the packet engine runs without offloads"
                    );
                    self.config.features = features;
                    queues
                }
                Err(why) => return Err(why),
            };
            self.queues = queues.into_iter().map(Arc::new).collect();
        }
        self.start_threads()
    }

    /// Binds the sockets to an address, or to one address of each family. The device stays open. If a bind
    /// fails, the old sockets stay in use.
    pub fn rebind_and_restart(&mut self, listen: Addresses) -> Result<(), Problem> {
        if !self.threads.is_empty() && self.is_bound_to(listen) {
            return Ok(());
        }
        self.stop_threads();
        let result = self.bind_sockets(listen);
        let started = if self.queues.is_empty() { Ok(()) } else { self.start_threads() };
        result.and(started)
    }

    fn is_bound_to(&self, listen: Addresses) -> bool {
        let port = self.config.port;
        self.sockets.as_ref().is_some_and(|own| (own.listen, own.port) == (listen, port))
    }

    fn bind_sockets(&mut self, listen: Addresses) -> Result<(), Problem> {
        if self.is_bound_to(listen) {
            return Ok(());
        }
        let port = self.config.port;
        let mut receive = Vec::new();
        for address in listen.ips() {
            for _ in 0..self.config.features.queues {
                let socket =
                    Socket::bind(address, port, &self.config.features).map_err(|error| {
                        bind_error(SocketAddr::new(address, port), &self.config.framing, &error)
                    })?;
                receive.push(Arc::new(socket));
            }
        }
        if let Some(size) =
            receive.first().map(|socket| socket.receive_buffer()).filter(|size| *size < 4 << 20)
        {
            tracing::warn!(
                device = %self.config.device,
                port,
                bytes = size,
                remedy = "give flanneld CAP_NET_ADMIN, or set net.core.rmem_max to 8388608",
                "the receive buffer of the UDP port is small, so bursts may be lost"
            );
        }
        let spread = self.bind_send_sockets(listen)?;
        self.sockets = Some(Sockets { listen, port, receive, spread });
        Ok(())
    }

    fn bind_send_sockets(&self, listen: Addresses) -> Result<Vec<Arc<Socket>>, Problem> {
        let Some(address) = listen.ips().next().filter(|_| self.config.spread) else {
            return Ok(Vec::new());
        };
        let bound: Result<Vec<_>, _> = (0..SPREAD)
            .map(|_| Socket::bind(address, 0, &self.config.features).map(Arc::new))
            .collect();
        bound.map_err(|error| {
            Problem::new(
                "socket-unusable",
                format!("cannot bind a UDP socket to {address}: {error}"),
            )
        })
    }

    /// Fails if no sockets are bound, or if the host provides no more threads or files.
    pub fn start_threads(&mut self) -> Result<(), Problem> {
        self.stop_threads();
        let Some(sockets) = self.sockets.clone() else {
            return Err(Problem::new("engine-without-socket", "the engine has no socket"));
        };
        let wake = Arc::new(Wake::new().map_err(|error| {
            Problem::new(
                "no-eventfd",
                format!("cannot create an eventfd: {}", io::Error::from(error)),
            )
        })?);
        self.wake = Some(wake.clone());
        let means = if self.config.features.real_time {
            Means::probe_granted_in_trial_thread()
        } else {
            Means::Nothing
        };
        self.record_mode_and_scheduling(means);
        let config = Arc::new(self.config.clone());
        let queues: Arc<[_]> = self.queues.clone().into();
        // The sockets of a queue: one for each address.
        let of = |number: usize| {
            sockets
                .receive
                .iter()
                .skip(number)
                .step_by(queues.len().max(1))
                .cloned()
                .collect::<Vec<_>>()
        };
        let scheduling = Scheduling::new(means, features::available_cpus(), self.counters.clone());
        for (number, tun) in queues.iter().enumerate() {
            let receive = of(number);
            let out = tx::Tx {
                config: config.clone(),
                tun: tun.clone(),
                sockets: if sockets.spread.is_empty() {
                    receive.clone()
                } else {
                    sockets.spread.clone()
                },
                table: self.table.clone(),
                encryption: self.encryption.clone(),
                counters: self.counters.clone(),
                wake: wake.clone(),
            };
            let own = scheduling.clone();
            self.spawn_thread(format!("flannel-tx-{number}"), move || {
                out.run_until_wake_signal(Priority::new_and_raise_thread_weight(own));
            })?;
            for socket in receive {
                let name = format!(
                    "flannel-rx{}-{number}",
                    if socket.is_ipv6() && sockets.listen.v4().is_some() { "6" } else { "" }
                );
                let rx = rx::Rx {
                    config: config.clone(),
                    queues: queues.clone(),
                    socket,
                    table: self.table.clone(),
                    encryption: self.encryption.clone(),
                    counters: self.counters.clone(),
                    wake: wake.clone(),
                };
                let own = scheduling.clone();
                self.spawn_thread(name, move || {
                    rx.run_until_wake_signal(Priority::new_and_raise_thread_weight(own));
                })?;
            }
        }
        if let Some(encryption) = self.encryption.clone() {
            let control = ControlSender::new(self.config.device.clone(), of(0));
            // Runs at ordinary priority, so that a flood of handshakes does not delay packets.
            self.spawn_thread(encryption.thread_name().to_owned(), move || {
                control.run_until_wake_signal(&*encryption, &wake);
            })?;
        }
        Ok(())
    }

    fn spawn_thread(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), Problem> {
        let thread = std::thread::Builder::new().name(name).stack_size(256 << 10).spawn(work);
        // An engine runs with all its threads or with none.
        let thread = thread.inspect_err(|_| self.stop_threads());
        self.threads.push(thread.map_err(|error| {
            Problem::new("no-thread", format!("cannot start a thread: {error}"))
        })?);
        Ok(())
    }

    fn record_mode_and_scheduling(&self, means: Means) {
        let offload = self.queues.first().map(|queue| queue.offload()).unwrap_or_default();
        let features = &self.config.features;
        let parts = [
            (features.tun_tap, "tun-tap"),
            (offload.tcp, "TSO"),
            (offload.udp, "USO"),
            (features.gso, "UDP GSO"),
            (features.gso, "UDP GRO"),
            (features.batch > 1, "batches"),
        ];
        let parts: Vec<&str> =
            parts.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        let text = format!(
            "{} ({}; {} queues; {})",
            features.name,
            parts.join(", "),
            features.queues,
            means.name()
        );
        let mut mode = self.counters.mode.lock();
        if *mode != text {
            tracing::info!(
                device = %self.config.device,
                mode = %text,
                "packet mode selected"
            );
            if features.real_time && means != Means::RealTime {
                tracing::warn!(
                    device = %self.config.device,
                    instead = means.name(),
                    remedy = "give flanneld CAP_SYS_NICE, or set LimitRTPRIO=1 under systemd; a kernel with RT_GROUP_SCHED refuses real-time scheduling to containers",
                    "the kernel refuses real-time scheduling for the packet threads, so packets wait longer while other programs are busy"
                );
            }
            *mode = text;
        }
    }

    /// Stops the threads. The device and the sockets stay open.
    pub fn stop_threads(&mut self) {
        if let Some(wake) = self.wake.take() {
            wake.signal_threads_to_end();
        }
        if let Some(encryption) = &self.encryption {
            encryption.ring();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// Closes the device, so that the kernel deletes it.
    pub fn close_device(&mut self) {
        self.stop_threads();
        self.queues.clear();
    }
}

fn bind_error(address: SocketAddr, framing: &Framing, error: &io::Error) -> Problem {
    if error.raw_os_error() != Some(libc::EADDRINUSE) {
        return Problem::new("tunnel-port-unusable", format!("cannot bind UDP {address}: {error}"));
    }
    let (number, Rival { interface, key }) = (address.port(), framing.possible_port_holder());
    let text = format!(
        "cannot bind UDP {address}: another program (`ss -lunp sport = :{number}`), another flanneld, or {interface} uses the port. Stop the program or delete the interface, or set another {key} in the Backend of the network configuration"
    );
    let purpose = PortPurpose::Tunnel;
    Problem::new("tunnel-port-taken", text).with(Detail::PortTaken { number, udp: true, purpose })
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

#[cfg(test)]
mod tests;
