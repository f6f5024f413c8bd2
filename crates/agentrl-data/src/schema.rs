//! Schemas of the tables: names, columns and codes of format v4.
//!
//! Types are plain on purpose (i32, i64, u8, u16, u32, f32, f64, utf8, lists, struct, fixed binary, timestamp): every
//! reader of Arrow files supports them.
//!
//! Format v2 adds `trajectories.role` and `draws.trained` after the columns of v1. After the columns of steps and
//! trajectories it adds the struct `facts` ([`crate::facts`]), if a run declares any. Rows of v1 are read as rows of
//! members that are trained. Format v3 adds `draws.votes` at the end; older rows vote. Format v4 adds token columns
//! ([`crate::token_columns`]) after the columns of nodes.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use agentrl_compute::{named_options, names};
use arrow_array::{ArrayRef, RecordBatch, UInt8Array, new_null_array};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

use crate::{Error, Result};

/// Version of the table format, written in every file.
pub const FORMAT_VERSION: u32 = 4;

/// A table of facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Runs of tokens from one source, stored once.
    Nodes,
    /// Turns of trajectories.
    Steps,
    /// Agents' views of episodes.
    Trajectories,
    /// Uses of trajectories in an iteration.
    Draws,
    /// Task statistics over the run.
    Tasks,
    /// Decisions of planners while the rollouts ran.
    Decisions,
}

impl Table {
    /// All tables, in the order in which rows refer to each other.
    pub const ALL: [Table; Table::COUNT] =
        [Table::Nodes, Table::Steps, Table::Trajectories, Table::Draws, Table::Tasks, Table::Decisions];

    /// Number of tables.
    pub const COUNT: usize = 6;

    /// Name of the table, which is also the name of its folder in a store.
    pub fn name(self) -> &'static str {
        match self {
            Table::Nodes => "nodes",
            Table::Steps => "steps",
            Table::Trajectories => "trajectories",
            Table::Draws => "draws",
            Table::Tasks => "tasks",
            Table::Decisions => "decisions",
        }
    }

    /// Return the table with a name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name).ok_or_else(|| {
            Error::not_found(format!("table {name:?} does not exist; use one of {:?}", Self::ALL.map(Self::name)))
        })
    }

    /// Return the columns of the table.
    pub fn schema(self) -> SchemaRef {
        SCHEMAS[self as usize].clone()
    }

    /// Return the columns of the table for rows that are joined from parts. The metadata about rewards or entropies
    /// (names of reward components, the estimator of entropies) is that of the first part that has such values. The
    /// facts that the parts have are added, and the token columns, which all parts have.
    pub fn schema_of(self, parts: &[RecordBatch]) -> SchemaRef {
        let first = parts.iter().find(|part| self.is_described(part));
        let first = first.or_else(|| parts.iter().find(|part| part.num_rows() > 0)).or(parts.first());
        let metadata = first.map_or_else(HashMap::new, |part| part.schema().metadata().clone());
        let facts = parts.iter().find_map(|part| facts_of(&part.schema()).cloned());
        let mut known = facts.map_or_else(|| self.schema(), |field| with_field(&self.schema(), field));
        if let (Table::Nodes, Some(part)) = (self, parts.first()) {
            for field in part.schema().fields().iter().skip(known.fields().len()) {
                known = with_field(&known, field.clone());
            }
        }
        let metadata = known.metadata().clone().into_iter().chain(metadata).collect();
        Arc::new(known.as_ref().clone().with_metadata(metadata))
    }

    /// Return the values of a column that came after format v1, for rows that were written before.
    pub(crate) fn later_column(field: &Field, rows: usize) -> Option<ArrayRef> {
        match field.name().as_str() {
            "role" => Some(Arc::new(UInt8Array::from(vec![Role::Member as u8; rows]))),
            "trained" | "votes" => Some(Arc::new(UInt8Array::from(vec![1; rows]))),
            _ => field.is_nullable().then(|| new_null_array(field.data_type(), rows)),
        }
    }

    /// Whether rows have values in the column that the metadata of the table describes.
    pub(crate) fn is_described(self, rows: &RecordBatch) -> bool {
        let column = match self {
            Table::Nodes => "entropies",
            Table::Steps | Table::Trajectories => "rewards",
            Table::Draws | Table::Tasks | Table::Decisions => return false,
        };
        rows.column_by_name(column).is_some_and(|values| values.null_count() < values.len())
    }
}

names! {
    /// The source of the tokens of a node.
    #[repr(u8)]
    "kind" Kind {
        /// The task as the policy first sees it.
        Prompt = "prompt",
        /// Sampled by the policy.
        Action = "action",
        /// Written by the environment.
        Observation = "observation",
        /// Put into the context without being sampled now (a repeated or rewritten text).
        Injected = "injected",
    }
}

impl Kind {
    /// Return the kind of a code of column `kind`.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Reason why sampling of a node stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum FinishReason {
    /// Nothing was sampled, or the reason is unknown.
    #[default]
    None = 0,
    /// A stop token was sampled.
    Stop = 1,
    /// The token limit was reached.
    Length = 2,
    /// The request was aborted.
    Abort = 3,
}

impl FinishReason {
    /// Return the reason of a code of column `finish_reason`.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::None, Self::Stop, Self::Length, Self::Abort].get(usize::from(code)).copied()
    }

    /// Return the reason with a name.
    pub fn from_name(name: &str) -> Result<Self> {
        named_options::choice(
            "finish_reason",
            name,
            &[("stop", Self::Stop), ("length", Self::Length), ("abort", Self::Abort)],
        )
    }
}

/// Status of a trajectory: how it ended, or that it has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Status {
    /// The episode ended.
    Finished = 0,
    /// A limit ended it.
    Truncated = 1,
    /// Stopped from outside.
    Aborted = 2,
    /// Removed by the planner.
    Pruned = 3,
    /// The environment or the engine failed.
    Failed = 4,
    /// Not ended yet.
    #[default]
    Partial = 5,
}

impl Status {
    /// Return the status of a code of column `status`.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::Finished, Self::Truncated, Self::Aborted, Self::Pruned, Self::Failed, Self::Partial];
        all.get(usize::from(code)).copied()
    }

    /// Return the final status with a name. `pruned` is not accepted, because pruning has its own call; neither is
    /// `partial`, because it is not an end.
    pub fn from_name(name: &str) -> Result<Self> {
        let ends = [
            ("finished", Self::Finished),
            ("truncated", Self::Truncated),
            ("aborted", Self::Aborted),
            ("failed", Self::Failed),
        ];
        named_options::choice("status", name, &ends)
    }

    /// Whether a trajectory with this status is drawn into the training batch.
    pub fn is_drawn(self) -> bool {
        matches!(self, Self::Finished | Self::Truncated)
    }
}

/// Bit of `steps.flags`: the step's tokens are in the data but not trained. Its trajectory was pruned from the gradient
/// only, or was forked without training the prefix. The lower bits belong to the environment.
pub const FLAG_UNTRAINED: u32 = 1 << 31;

/// An enumeration whose variants are the codes of a column, in order.
macro_rules! coded {
    ($(#[$about:meta])* $name:ident($argument:literal) { $($(#[$what:meta])* $variant:ident = $text:literal,)+ }) => {
        names! {
            $(#[$about])*
            #[derive(PartialOrd, Ord)]
            #[repr(u8)]
            $argument $name { $($(#[$what])* $variant = $text,)+ }
        }

        impl $name {
            /// Names of the codes, in their order.
            pub const NAMES: [&str; [$($text),+].len()] = [$($text),+];

            /// Return the variant of a code of the column.
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }
    };
}

coded! {
    /// Origin of a trajectory.
    Origin("origin") {
        /// It was sampled by the policy that is trained.
        Generated = "generated",
        /// It was given by an expert.
        Expert = "expert",
        /// A model of the environment answered its actions.
        Imagined = "imagined",
        /// It was recorded elsewhere.
        Imported = "imported",
    }
}

coded! {
    /// The role of a trajectory.
    #[derive(Default)]
    Role("role") {
        /// It is scored, votes and is trained.
        #[default]
        Member = "member",
        /// It is scored and votes, and is never trained.
        Baseline = "baseline",
        /// It is kept, and never drawn.
        Helper = "helper",
    }
}

coded! {
    /// Source of a draw: how its trajectory came into the training batch.
    Source("source") {
        /// It was generated in the iteration that uses it.
        Fresh = "fresh",
        /// It was used or kept before.
        Replay = "replay",
        /// It was given by an expert.
        Expert = "expert",
        /// It failed before, and is drawn to learn from its failure.
        Failed = "failed",
        /// A model of the environment answered its actions.
        Imagined = "imagined",
    }
}

coded! {
    /// Operation that a planner chose.
    Operation("operation") {
        /// A trajectory starts at the root of its group's tree.
        Start = "start",
        /// A trajectory branches off another one.
        Fork = "fork",
        /// A trajectory continues.
        Continue = "continue",
        /// Tokens are put into a trajectory's context.
        Inject = "inject",
        /// A trajectory is joined from the beginning of one and the end of another.
        Splice = "splice",
        /// A trajectory goes back to an earlier token.
        Rollback = "rollback",
        /// A trajectory takes the place of another.
        Replace = "replace",
        /// A trajectory is pruned.
        Prune = "prune",
        /// A trajectory ends here.
        Stop = "stop",
        /// A stored partial trajectory continues.
        Resume = "resume",
    }
}

coded! {
    /// Agreement of an ingested turn with the turns before it.
    Drift("drift") {
        /// Its prompt continues what is stored.
        Clean = "clean",
        /// Only the last tokens of the previous output differ, and few of them.
        Realigned = "realigned",
        /// The context was rewritten.
        Rewritten = "rewritten",
        /// The same text has other tokens.
        Retokenised = "retokenised",
        /// The beginning or the end of the context is missing.
        Truncated = "truncated",
    }
}

coded! {
    /// Denominator of a draw's ratio.
    OldLogprob("old_logprob") {
        /// The behaviour policy's stored log-probs.
        Behaviour = "behaviour",
        /// Log-probs recomputed with the policy before the update.
        Recomputed = "recomputed",
        /// None: some of the trajectory's actions were not sampled.
        None = "none",
    }
}

/// The fields of `nodes.sampling`.
pub fn sampling_fields() -> Fields {
    Fields::from(vec![
        Field::new("temperature", DataType::Float32, false),
        Field::new("top_p", DataType::Float32, false),
        Field::new("top_k", DataType::Int32, false),
    ])
}

/// Key in the metadata of `nodes`: the estimator of `entropies`, which are in nats and of the distribution sampled
/// from.
pub const ENTROPIES: &str = "entropies";

/// Key in the metadata of `steps` and `trajectories`: the names of the components of `rewards`, as a JSON list.
pub const REWARD_COMPONENTS: &str = "reward_components";

/// Name of the column of steps and trajectories with the facts of their environment, if a run declares any.
pub(crate) const FACTS: &str = "facts";

/// Return the field of the facts, if a table has them.
pub(crate) fn facts_of(schema: &Schema) -> Option<&Arc<Field>> {
    schema.fields().last().filter(|last| last.name() == FACTS)
}

/// Return a schema with one more column at its end.
pub(crate) fn with_field(schema: &Schema, field: Arc<Field>) -> SchemaRef {
    let fields = schema.fields().iter().cloned().chain([field]);
    Arc::new(Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone()))
}

/// Return the type of a list whose values are never null.
pub fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, false)))
}

fn codes(names: &[&str]) -> HashMap<String, String> {
    let text = names.iter().enumerate().map(|(code, name)| format!("{code}={name}")).collect::<Vec<_>>().join(",");
    HashMap::from([("codes".to_owned(), text)])
}

static SCHEMAS: LazyLock<[SchemaRef; Table::COUNT]> = LazyLock::new(|| {
    use DataType::{FixedSizeBinary, Float32, Float64, Int32, Int64, UInt8, UInt32, Utf8};
    let must = |name: &str, kind: DataType| Field::new(name, kind, false);
    let may = |name: &str, kind: DataType| Field::new(name, kind, true);
    let status = || codes(&["finished", "truncated", "aborted", "pruned", "failed", "partial"]);
    let nodes = vec![
        must("node_id", Int64),
        may("parent_id", Int64),
        may("parent_end", Int32),
        must("group_id", Int64),
        must("start", Int32),
        must("kind", UInt8).with_metadata(codes(&["prompt", "action", "observation", "injected"])),
        must("tokens", list_of(Int32)),
        may("logprobs", list_of(Float32)),
        may("entropies", list_of(Float32)),
        may("trainable", list_of(UInt8)),
        must("policy", Int32),
        may("policy_version", Int64),
        may("seed", Int64),
        may("sampling", DataType::Struct(sampling_fields())),
        must("finish_reason", UInt8).with_metadata(codes(&["none", "stop", "length", "abort"])),
        may("origin_node_id", Int64),
        may("blobs", list_of(FixedSizeBinary(32))),
        must("created_us", DataType::Timestamp(TimeUnit::Microsecond, None)),
    ];
    let steps = vec![
        must("trajectory_id", Int64),
        must("step", Int32),
        must("first_node_id", Int64),
        must("node_id", Int64),
        may("end", Int32),
        must("origin_trajectory_id", Int64),
        must("state_key", FixedSizeBinary(16)),
        may("reward", Float32),
        may("rewards", list_of(Float32)),
        must("terminated", UInt8),
        must("truncated", UInt8),
        must("flags", UInt32),
        may("drift", UInt8).with_metadata(codes(&Drift::NAMES)),
        may("drift_at", Int32),
    ];
    let trajectories = vec![
        must("trajectory_id", Int64),
        must("group_id", Int64),
        must("episode_id", Int64),
        must("agent", Int32),
        must("task_id", Utf8),
        must("iteration", Int64),
        must("leaf_node_id", Int64),
        may("leaf_end", Int32),
        may("final_state_key", FixedSizeBinary(16)),
        may("reward", Float32),
        may("rewards", list_of(Float32)),
        may("success", UInt8),
        must("status", UInt8).with_metadata(status()),
        must("origin", UInt8).with_metadata(codes(&Origin::NAMES)),
        may("parent_trajectory", Int64),
        may("branch_node", Int64),
        may("branch_end", Int32),
        may("min_policy_version", Int64),
        may("max_policy_version", Int64),
        may("info", Utf8),
        must("role", UInt8).with_metadata(codes(&Role::NAMES)),
    ];
    let draws = vec![
        must("draw_id", Int64),
        must("iteration", Int64),
        must("position", Int32),
        must("trajectory_id", Int64),
        must("group_id", Int64),
        must("source", UInt8).with_metadata(codes(&Source::NAMES)),
        may("probability", Float64),
        must("old_logprob", UInt8).with_metadata(codes(&OldLogprob::NAMES)),
        may("reason", Utf8),
        must("trained", UInt8),
        must("votes", UInt8),
    ];
    let tasks = vec![
        must("task_id", Utf8),
        may("domain", Utf8),
        must("attempts", Int64),
        must("successes", Int64),
        must("alpha", Float64),
        must("beta", Float64),
        may("last_version", Int64),
        may("difficulty", Float64),
        must("uses", Int64),
    ];
    let decisions = vec![
        must("iteration", Int64),
        must("group_id", Int64),
        must("round", Int32),
        must("ordinal", Int32),
        must("operation", UInt8).with_metadata(codes(&Operation::NAMES)),
        must("trajectory_id", Int64),
        may("node_id", Int64),
        may("end", Int32),
        may("result_trajectory_id", Int64),
        may("score", Float64),
        may("reason", Utf8),
    ];
    [nodes, steps, trajectories, draws, tasks, decisions].map(|fields| {
        let metadata = HashMap::from([("agentrl_format".to_owned(), FORMAT_VERSION.to_string())]);
        Arc::new(Schema::new_with_metadata(fields, metadata))
    })
});
