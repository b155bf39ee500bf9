//! A datagram on the probe port: what is taken for a message leads back to its bytes, and a row holds what fits in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use probing::rows;
use probing::wire::{ECHO, HEADER, Message, ROW, echo, parse, row_answer};

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Some(Message::Echo(header, body)) => {
            assert!(data.len() >= ECHO);
            assert_eq!(parse(&echo(&header, &body, data.len())), Some(Message::Echo(header, body)));
        }
        Some(Message::Row(header, rest)) => {
            assert!(data.len() <= ROW);
            if !header.kind.asks() {
                assert_eq!(row_answer(&header, rest).unwrap(), data);
                assert_eq!(rest.len(), data.len() - HEADER);
            }
            if let Some(body) = rows::read(rest) {
                assert!(body.cells.len() * 8 <= rest.len());
                let again = rows::write(&body);
                assert!(HEADER + again.len() <= ROW);
                assert_eq!(rows::read(&again).unwrap().counts, body.counts);
            }
        }
        None => {}
    }
    let _ = rows::read(data);
});
