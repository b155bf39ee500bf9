//! flanneld: options, logging, the daemon, the exit code.

use flanneld::{cli, daemon, logging};
use std::process::ExitCode;

fn main() -> ExitCode {
    // ring and nothing else; a second provider in the tree would make the first TLS connection fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let settings = match cli::invocation().settings_or_print() {
        Ok(settings) => settings,
        Err(code) => return ExitCode::from(code),
    };
    logging::init(settings.logging);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).max_blocking_threads(4).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(
                "cannot start: the system gives no threads or descriptors: {error}; raise the limits (ulimit -u, -n; TasksMax, LimitNOFILE)"
            );
            return ExitCode::from(1);
        }
    };
    let code = runtime.block_on(daemon::run(*settings));
    // A blocked worker (a file system that hangs) shall not hold up the end.
    runtime.shutdown_background();
    ExitCode::from(code)
}
