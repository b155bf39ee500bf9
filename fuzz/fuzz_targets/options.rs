//! flanneld's command line, with one argument per line: the parser returns settings or error texts, and does
//! not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data).into_owned();
    let args = text.split('\n').map(std::ffi::OsString::from);
    let _ = options::read(args, &|_| None, &[]);
});
