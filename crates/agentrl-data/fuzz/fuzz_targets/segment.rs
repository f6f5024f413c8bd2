//! Fuzz target: a file of rows. The first byte selects the table.
#![no_main]

use agentrl_data::batch::{Batch, Level};
use agentrl_data::ipc;
use agentrl_data::schema::Table;
use arrow_buffer::Buffer;
use libfuzzer_sys::fuzz_target;

// The Arrow crates panic on bytes that are not an Arrow file, and the reader turns the panic into an error. So only an
// uncaught panic is a failure: libFuzzer then ends the process.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else { return };
    let Ok(rows) = ipc::decode("fuzz", &Buffer::from(bytes)) else { return };
    let Ok(empty) = Batch::empty() else { return };
    let mut tables = Table::ALL.map(|table| empty.table(table).clone());
    tables[usize::from(which) % Table::COUNT] = rows;
    let Ok(batch) = Batch::new(tables) else { return };
    for level in [Level::Draw, Level::Step, Level::Token, Level::NodeToken] {
        for name in ["token", "behaviour_logprob", "trainable", "reward", "policy_version"] {
            _ = batch.column(name, level);
        }
    }
    _ = Batch::concat(&[batch.clone(), batch.clone()]);
    _ = batch.to_bytes();
});
