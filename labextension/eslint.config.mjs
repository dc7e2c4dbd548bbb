import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['lib/', 'node_modules/', '.yarn/', 'style/', 'eslint.config.mjs'] },
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: { parserOptions: { project: ['tsconfig.json', 'tests/tsconfig.json'] } },
    rules: {
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/explicit-module-boundary-types': 'error',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // Signals of Lumino take the object that a method belongs to beside the method.
      '@typescript-eslint/unbound-method': 'off',
      eqeqeq: 'error',
      'no-restricted-properties': ['error', { property: 'innerHTML' }, { property: 'outerHTML' }]
    }
  },
  {
    files: ['tests/**'],
    // node:test returns promises that its own runner awaits.
    rules: { '@typescript-eslint/no-floating-promises': 'off' }
  }
);
