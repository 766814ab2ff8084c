// The base of every view: Preact's elements, written as templates.
import { createContext, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { createContext, h, render };
export {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "./vendor/hooks.js";

export const html = htm.bind(h);
