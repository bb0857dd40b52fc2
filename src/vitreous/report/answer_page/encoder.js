// A model without a head is an encoder: it names nothing, and gives numbers for an image, its features.

export const isEncoder = (model) => !model.classes;

/** Where to ask what the model makes of an image. */
export const asked = (model) => (isEncoder(model) ? "/api/features" : "/api/predict");

/** What leaves the model, in words. */
export const outcome = (model) => (isEncoder(model) ? "the features" : "the answer");
