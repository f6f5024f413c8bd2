//! Speed of ingesting turns and freezing the batch: `cargo bench -p agentrl-data`. One sample is a whole collection.

use agentrl_compute::ragged::Ragged;
use agentrl_data::forest::{Finish, Forest, Handle, NewNode, Rows, Turns};
use agentrl_data::{Error, Result};
use divan::Bencher;
use divan::counter::ItemsCount;

const SESSIONS: usize = 64;
const TURNS: usize = 32;
/// Tokens that each turn adds to the context, and tokens that are sampled after them.
const SHOWN: usize = 64;
const SAMPLED: usize = 64;

fn main() {
    divan::main();
}

/// Growing chats: the session, the whole context and the output of each turn, flat.
struct Chats {
    sessions: Vec<usize>,
    prompts: (Vec<i32>, Vec<i64>),
    outputs: (Vec<i32>, Vec<i64>),
}

impl Chats {
    /// Create the turns of all sessions in the order in which an engine with batches of `SESSIONS` processes them.
    fn new() -> Self {
        let mut chats = Self { sessions: Vec::new(), prompts: (Vec::new(), vec![0]), outputs: (Vec::new(), vec![0]) };
        for turn in 0..TURNS {
            for session in 0..SESSIONS {
                chats.sessions.push(session);
                let length = turn * (SHOWN + SAMPLED) + SHOWN;
                chats.prompts.0.extend((0..length).map(|position| token(session, position)));
                chats.outputs.0.extend((length..length + SAMPLED).map(|position| token(session, position)));
                chats.prompts.1.push(chats.prompts.0.len() as i64);
                chats.outputs.1.push(chats.outputs.0.len() as i64);
            }
        }
        chats
    }

    /// Ingest the turns, `calls_of` turns in each call.
    fn ingest(&self, calls_of: usize) -> Result<(Forest, Vec<Handle>)> {
        let mut forest = Forest::new(0, 0);
        forest.add_group(0, "task")?;
        let handles = (0..SESSIONS as u32).map(|member| forest.start(0, member)).collect::<Result<Vec<_>>>()?;
        let (prompts, outputs) =
            (Ragged::new(&self.prompts.0, &self.prompts.1)?, Ragged::new(&self.outputs.0, &self.outputs.1)?);
        for first in (0..self.sessions.len()).step_by(calls_of) {
            let part = first..(first + calls_of).min(self.sessions.len());
            let trajectories: Vec<Handle> =
                self.sessions[part.clone()].iter().map(|&session| handles[session]).collect();
            let column = |rows: &Ragged<'_, i32>| -> (Vec<i32>, Vec<i64>) {
                let rows: Vec<&[i32]> = part.clone().filter_map(|row| rows.get(row)).collect();
                let ends = rows.iter().scan(0, |end, row| {
                    *end += row.len() as i64;
                    Some(*end)
                });
                (rows.concat(), std::iter::once(0).chain(ends).collect())
            };
            let (prompts, outputs) = (column(&prompts), column(&outputs));
            let outputs = Rows::new(&trajectories, Ragged::new(&outputs.0, &outputs.1)?);
            let prompts = Ragged::new(&prompts.0, &prompts.1)?;
            let turns = Turns { outputs, prompts, known: None, images: None, realign: 8, vocabulary: None };
            forest.ingest(&turns, &mut || Ok(()))?;
        }
        Ok((forest, handles))
    }
}

fn token(session: usize, position: usize) -> i32 {
    ((position * 2_654_435_761 + session * 40_503) % 50_000) as i32
}

fn stored() -> ItemsCount {
    ItemsCount::new(SESSIONS * TURNS * (SHOWN + SAMPLED))
}

/// One call for each turn, one for each turn of all sessions, and one for the whole collection.
#[divan::bench(args = [1, SESSIONS, SESSIONS * TURNS])]
fn ingest(bencher: Bencher<'_, '_>, calls_of: usize) {
    let chats = Chats::new();
    bencher.counter(stored()).bench_local(|| chats.ingest(calls_of));
}

/// Append the same tokens node by node.
#[divan::bench]
fn append(bencher: Bencher<'_, '_>) {
    bencher.counter(stored()).bench_local(|| -> Result<Forest> {
        let mut forest = Forest::new(0, 0);
        forest.add_group(0, "task")?;
        for session in 0..SESSIONS {
            let handle = forest.start(0, session as u32)?;
            for turn in 0..TURNS {
                let begin = turn * (SHOWN + SAMPLED);
                let tokens = |from: usize, count: usize| (from..from + count).map(|at| token(session, at)).collect();
                forest.append(handle, NewNode::observation(tokens(begin, SHOWN)))?;
                forest.append(handle, NewNode::action(tokens(begin + SHOWN, SAMPLED), vec![-0.5; SAMPLED]))?;
            }
        }
        Ok(forest)
    });
}

/// Freeze the batch of the same turns.
#[divan::bench]
fn freeze(bencher: Bencher<'_, '_>) {
    let chats = Chats::new();
    let grown = || -> Result<Forest> {
        let (mut forest, handles) = chats.ingest(SESSIONS)?;
        handles.into_iter().try_for_each(|handle| forest.finish(handle, Finish::default()))?;
        Ok(forest)
    };
    bencher.counter(stored()).with_inputs(grown).bench_local_values(|forest| -> Result<usize> {
        let tokens = forest?.freeze()?.nodes().num_rows();
        if tokens == 2 * SESSIONS * TURNS { Ok(tokens) } else { Err(Error::internal("not every node was frozen")) }
    });
}
