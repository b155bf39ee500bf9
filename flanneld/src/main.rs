//! flanneld's entry point: parses options, starts logging, runs the daemon and returns its exit code.

use flanneld::handover::Inherited;
use flanneld::{daemon, logging, memory};
use std::process::ExitCode;
use std::time::Duration;

/// Time for which the runtime keeps an idle thread for blocking calls: 100 years.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

fn main() -> ExitCode {
    memory::configure();
    let inherited = Inherited::of_systemd();
    // Only ring: a second provider in the tree would make the first TLS connection fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = options::read(
        std::env::args_os().skip(1),
        &|name| std::env::var_os(name),
        &backends::backend_names(),
    );
    let settings = match read.settings_or_print() {
        Ok(settings) => settings,
        Err(code) => return ExitCode::from(code),
    };
    logging::init(settings.logging);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .thread_keep_alive(FOREVER)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(
                error = %error,
                remedy = "raise the limits (ulimit -u, -n; TasksMax, LimitNOFILE)",
                "cannot start: no threads or file descriptors left"
            );
            return ExitCode::from(1);
        }
    };
    // Starts the first blocking thread now: tokio panics if it needs its first one and the system refuses it (TasksMax).
    drop(runtime.spawn_blocking(|| ()));
    let code = runtime.block_on(daemon::run(*settings, inherited));
    // A blocked worker (a hanging file system) must not delay the exit.
    runtime.shutdown_background();
    ExitCode::from(code)
}
