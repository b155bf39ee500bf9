//! Metrics of this process, with the names that Prometheus' own client libraries use.

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

/// In seconds since 1970.
static STARTED: LazyLock<f64> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
});

/// Records the start time of the process.
pub(super) fn started() {
    LazyLock::force(&STARTED);
}

/// Omits metrics whose values the kernel does not report.
pub(super) fn register(registry: &mut Registry) {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        let seconds = Counter::<f64, AtomicU64>::default();
        #[expect(
            clippy::cast_precision_loss,
            reason = "exact for the first 285 years of processor time"
        )]
        seconds.inc_by(us as f64 / 1_000_000.0);
        registry.register(
            "cpu_seconds",
            "Time that the process spent on processors, in seconds",
            seconds,
        );
    }
    let start = Gauge::<f64, AtomicU64>::default();
    start.set(*STARTED);
    registry.register(
        "start_time_seconds",
        "Start time of the process, in seconds since 1970",
        start,
    );
    let limit = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
    for (name, help, value) in [
        ("resident_memory_bytes", "Memory of the process in RAM", resident_bytes()),
        ("open_fds", "Open file descriptors", entries("/proc/self/fd")),
        ("max_fds", "Limit of open file descriptors", limit),
        ("threads", "Threads of the process", entries("/proc/self/task")),
    ] {
        if let Some(value) = value {
            let gauge: Gauge = Gauge::default();
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            registry.register(name, help, gauge);
        }
    }
}

/// From the second field of /proc/self/statm (proc(5)), a number of pages.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    pages.checked_mul(u64::try_from(page).ok()?)
}

fn entries(path: &str) -> Option<u64> {
    u64::try_from(std::fs::read_dir(path).ok()?.count()).ok()
}
