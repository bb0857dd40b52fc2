// What kind of model answers, in words. One without a head is an encoder: it names nothing, and gives numbers for an
// image, its features.

export const isEncoder = (model) => !model.classes;

/** Where to ask what the model makes of an image. */
export const asked = (model) => (isEncoder(model) ? "/api/features" : "/api/predict");

/** What leaves the model, in words. */
export const outcome = (model) => (isEncoder(model) ? "the features" : "the answer");

/** How many places there are, and where they lie in shares of the image. */
export const layout = ({ grid, cells }) => ({ grid, cells });

/** What a token stands for: a patch of the image, or a place of the map that convolutions make. */
export const piece = (model) => model.transformer?.piece ?? "patch";
export const pieces = (model) => (piece(model) === "patch" ? "patches" : "places");
