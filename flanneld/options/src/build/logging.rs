//! Reads the flags of the log.

use crate::flags::LogFlags;
use crate::go;
use crate::reader::{Reader, given};
use crate::settings::Logging;

impl LogFlags {
    /// Checks klog's own flags as klog does, but ignores their values.
    pub(super) fn read(&self, reader: &mut Reader) -> Logging {
        let Self { log_format, v, vmodule, log_backtrace_at } = self;
        if let Some(value) = given(vmodule) {
            for part in value.text.split(',').filter(|part| !part.is_empty()) {
                let level = part
                    .split_once('=')
                    .filter(|(pattern, _)| !pattern.is_empty())
                    .and_then(|(_, level)| go::decimal(level));
                if level.is_none_or(|level| level < 0) {
                    reader.wrong(
                        value.unusable("not-a-vmodule", format!("{part:?} is not pattern=N")),
                    );
                }
            }
        }
        if let Some(value) = given(log_backtrace_at) {
            let line = value
                .text
                .split_once(':')
                .filter(|(file, _)| !file.is_empty())
                .and_then(|(_, line)| go::decimal(line));
            if line.is_none_or(|line| line <= 0) {
                reader.wrong(value.unusable(
                    "not-a-line-of-a-file",
                    format!("{:?} is not file.go:N", value.text),
                ));
            }
        }
        Logging {
            format: reader.choice(log_format),
            verbosity: reader.last(v).map_or(0, |(_, level)| level),
        }
    }
}
