//! Options chosen by name.

use crate::{Error, Result};

/// Declare an enumeration whose variants have names. It gets `name`, and `from_name`, whose error lists them.
///
/// ```
/// agentrl_compute::names! {
///     /// Treatment of rows that tie with the last chosen one.
///     "ties" Ties {
///         /// Earlier rows are chosen first.
///         First = "first",
///         /// All are chosen.
///         All = "all",
///     }
/// }
///
/// assert_eq!(Ties::from_name("all")?.name(), "all");
/// let message = Ties::from_name("last").map_err(|error| error.to_string());
/// assert_eq!(message, Err("ties is \"last\"; use \"first\" or \"all\"".to_owned()));
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
#[macro_export]
macro_rules! names {
    ($(#[$about:meta])* $option:literal $kind:ident { $($(#[$meaning:meta])* $choice:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind {
            $($(#[$meaning])* $choice,)+
        }

        impl $kind {
            /// All choices, in the order in which messages list them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$choice),+];

            /// Return the choice with this name.
            ///
            /// # Errors
            /// `InvalidInput` for an unknown name; the message lists the known names.
            pub fn from_name(name: &str) -> $crate::Result<Self> {
                $crate::named_options::choice($option, name, &Self::ALL.map(|choice| (choice.name(), choice)))
            }

            /// Return the name of the choice.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$choice => $name,)+
                }
            }
        }
    };
}

/// Return the value of a name from pairs of names and values.
///
/// # Errors
/// `InvalidInput` for an unknown name; the message lists the known names.
pub fn choice<T: Copy>(option: &str, name: &str, choices: &[(&str, T)]) -> Result<T> {
    let found = choices.iter().find(|(known, _)| *known == name);
    found.map(|&(_, choice)| choice).ok_or_else(|| {
        let mut known: Vec<String> = choices.iter().map(|(known, _)| format!("{known:?}")).collect();
        let last = known.pop().unwrap_or_default();
        let known = if known.is_empty() { last } else { format!("{} or {last}", known.join(", ")) };
        Error::invalid(format!("{option} is {name:?}; use {known}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_in_their_order() {
        let message = |choices: &[(&str, i32)]| choice("mode", "d", choices).map_err(|error| error.to_string());
        let (a, b, c) = (("a", 1), ("b", 2), ("c", 3));
        assert_eq!(message(&[a, b, c]), Err("mode is \"d\"; use \"a\", \"b\" or \"c\"".to_owned()));
        assert_eq!(message(&[a]), Err("mode is \"d\"; use \"a\"".to_owned()));
        assert_eq!(message(&[a, ("d", 4)]), Ok(4));
    }
}
