#![doc = include_str!("../README.md")]

mod definition;
mod expand;

use syn::parse_macro_input;

/// Makes a client, a server and a table of methods of a trait: see the module `petrel::service`.
#[proc_macro_attribute]
pub fn service(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let item = parse_macro_input!(item as syn::ItemTrait);
    let options: syn::Result<definition::Options> = syn::parse(options);
    let codec = options.as_ref().ok().map(|options| options.codec.clone()).into_iter();
    let definition = options.and_then(|options| definition::Definition::of(options, item.clone()));
    match definition {
        Ok(definition) => expand::expand(&definition).into(),
        // The trait and the codec stay, for the imports and implementations around the mistake.
        Err(mistake) => {
            let (item, mistake) = (definition::plain(item), mistake.into_compile_error());
            quote::quote!(#item #(const _: () = { type _Codec = #codec; };)* #mistake).into()
        }
    }
}
